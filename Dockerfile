# example_app behind uvicorn.
#
#     docker build -t example_app .
#     docker run -p 8000:8000 -v example_app:/data example_app
#
# WEB_CONCURRENCY is uvicorn's number of workers. They share the files in /data: the database, the
# calls that outlive their request, and the secret, unless GENMCP_SECRET gives one.
FROM python:3.13-slim

WORKDIR /srv
COPY pyproject.toml README.md LICENSE ./
COPY genmcp genmcp
RUN pip install --no-cache-dir '.[fast]'
COPY example_app example_app

RUN useradd --system --create-home --home-dir /data example
USER example
# The files are made in the working directory.
WORKDIR /data
VOLUME /data

ENV PORT=8000 WEB_CONCURRENCY=1
EXPOSE 8000
CMD ["sh", "-c", "exec uvicorn --app-dir /srv --host 0.0.0.0 --port \"$PORT\" example_app:app"]

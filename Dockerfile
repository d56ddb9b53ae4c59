# example_app behind uvicorn.
#
#     docker build -t example_app .
#     docker run --read-only --tmpfs /tmp -v example_app:/data -p 127.0.0.1:8000:8000 example_app
#
# It writes nothing but the files in /data: the database, the calls that outlive their request, and
# the secret, unless GENMCP_SECRET gives one. WEB_CONCURRENCY is uvicorn's number of workers, which
# share them.
#
# It listens on all addresses of its container and has no login, so the port is published on
# loopback above. Behind a proxy that logs people in, EXAMPLE_USER_HEADER=X-Forwarded-User names the
# header that the proxy sets; without it everybody is a guest, whatever the header says.
#
# The base is an exact tag, and packages are locked. A tag can be moved; for a build that is the same
# each time, append the digest that `docker buildx imagetools inspect` shows for the tag.
FROM python:3.13.12-slim-trixie

WORKDIR /srv
COPY example_app/requirements.txt requirements.txt
RUN pip install --no-cache-dir --no-deps -r requirements.txt
COPY pyproject.toml README.md LICENSE ./
COPY genmcp genmcp
RUN pip install --no-cache-dir --no-deps .
COPY example_app example_app

RUN useradd --system --create-home --home-dir /data example
USER example
# The files are made in the working directory.
WORKDIR /data
VOLUME /data

ENV PORT=8000 WEB_CONCURRENCY=1 PYTHONDONTWRITEBYTECODE=1
EXPOSE 8000
CMD ["sh", "-c", "exec uvicorn --app-dir /srv --host 0.0.0.0 --port \"$PORT\" example_app:app"]

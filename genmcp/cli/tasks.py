"""`genmcp tasks`: the tasks of a server, as their client sees them."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

import click
import msgspec

from genmcp.cancellation import cancel_and_wait
from genmcp.cli.lists import argument_texts
from genmcp.cli.output import CommandError, OutputWriter, duration, one_line
from genmcp.cli.parsing import TASK_ID, Group, TaskCommand, example
from genmcp.cli.remote import run_remote, write_result
from genmcp.cli.target import RemoteOptions, remote_options
from genmcp.cli.terminal import DeferringHandler, StatusLine
from genmcp.cli.values import check_arguments, convert_arguments, properties_of
from genmcp.client.client import Client
from genmcp.client.errors import ClientError
from genmcp.client.tasks import TaskHandle, progress_of
from genmcp.errors import ConfigurationError, McpError
from genmcp.protocol.client_features import ElicitRequest, ElicitResult, InputRequest
from genmcp.protocol.tasks import DetailedTask
from genmcp.protocol.tools import CallToolResult
from genmcp.protocol.value import decoder_for

Questions = Mapping[str, ElicitRequest]

_SILENCE: Final = 3.0  # seconds without progress, after which the server is asked why
_OPEN: Final = ("working", "input_required")  # the states of a task that has not ended
_EXAMPLE: Final = "http://127.0.0.1:8000/mcp 3fTq0cL8"  # a server and an id

_task: Final = click.argument("id", type=TASK_ID)
_ABOUT: Final = "TARGET is the URL of the server, and ID what `genmcp call --detach` has written."


@click.group("tasks", cls=Group)
def tasks() -> None:
    """Show, follow, answer and cancel tasks of a server."""


@tasks.command("show", cls=TaskCommand, epilog=example(f"tasks show {_EXAMPLE}", about=_ABOUT))
@remote_options
@_task
def show_task(options: RemoteOptions, id: str) -> None:
    """Show a task: its state, its progress and its questions."""

    async def fetch(client: Client, status: StatusLine) -> DetailedTask:
        return await client.task(id).status()

    def write(output: OutputWriter, task: DetailedTask) -> None:
        for name, text in _fields(task):
            output.write_line(f"{name:8}  {one_line(text)}")

    run_remote(options, fetch, write, DeferringHandler)


@tasks.command("follow", cls=TaskCommand, epilog=example(f"tasks follow {_EXAMPLE}", about=_ABOUT))
@remote_options
@_task
def follow_task(options: RemoteOptions, id: str) -> int:
    """Wait for the result of a task, and prompt for its questions at a terminal."""

    async def fetch(client: Client, status: StatusLine) -> CallToolResult:
        handle = client.task(id)
        watching = asyncio.ensure_future(_show_silence(handle, status))
        try:
            return await handle.wait(progress=status.show_progress, timeout=options.timeout)
        finally:
            await cancel_and_wait(watching)

    return int(run_remote(options, fetch, write_result, DeferringHandler).is_error)


@tasks.command("cancel", cls=TaskCommand, epilog=example(f"tasks cancel {_EXAMPLE}", about=_ABOUT))
@remote_options
@_task
def cancel_task(options: RemoteOptions, id: str) -> int:
    """Cancel a task. The status is 1 if it had ended before."""
    ended = False

    async def fetch(client: Client, status: StatusLine) -> DetailedTask:
        nonlocal ended
        handle = client.task(id)
        ended = (await handle.status()).status not in _OPEN
        if not ended:
            await handle.cancel()
        return await handle.status()

    def write(output: OutputWriter, task: DetailedTask) -> None:
        before = " before" if ended else ""
        output.write_line(f"{one_line(task.task_id)}: {task.status}{before}")

    run_remote(options, fetch, write, DeferringHandler)
    return int(ended)


@tasks.command(
    "answer",
    cls=TaskCommand,
    epilog=example(
        f"tasks answer {_EXAMPLE} size=large",
        f"tasks answer {_EXAMPLE} --decline",
        about=f"{_ABOUT} KEY=VALUE is a field of the form.",
    ),
)
@remote_options
@_task
@click.argument("pairs", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--accept", is_flag=True, help="accept a question without fields, or with their defaults"
)
@click.option("--decline", is_flag=True, help="decline the questions")
def answer_task(
    options: RemoteOptions, id: str, pairs: Sequence[str], accept: bool, decline: bool
) -> None:
    """Answer the open questions of a task by KEY=VALUE; `genmcp tasks follow` prompts for them."""
    if bool(pairs or accept) is decline:
        raise ConfigurationError(
            "give one answer: key=value, --accept or --decline; `genmcp tasks follow` prompts"
        )

    async def fetch(client: Client, status: StatusLine) -> DetailedTask:
        handle = client.task(id)
        questions = _questions(await handle.status())
        if decline:
            answers = {key: ElicitResult("decline") for key in questions}
        else:
            answers = _answers(questions, pairs)
        await handle.update(answers)
        return await handle.status()

    def write(output: OutputWriter, task: DetailedTask) -> None:
        output.write_line(f"{one_line(task.task_id)}: {task.status}")

    run_remote(options, fetch, write, DeferringHandler)


async def _show_silence(handle: TaskHandle, status: StatusLine) -> None:
    """Show the state of the task while there is no progress. Runs until it is cancelled."""
    while True:
        await asyncio.sleep(_SILENCE)
        if status.silence >= _SILENCE:
            with suppress(ClientError, McpError):  # `wait` reports it
                task = await handle.status()
                if task.status == "working":
                    status.show_silence(task.status_message)


def _progress_text(task: DetailedTask) -> str:
    if (latest := progress_of(task)) is None:
        return ""
    total = "" if latest.total is None else f"/{latest.total:g}"
    return f"{latest.progress:g}{total} {latest.message or ''}".rstrip()


def _has_failed(task: DetailedTask) -> bool:
    """Return whether the tool has failed; by the specification, its task is completed then."""
    try:
        result: CallToolResult = decoder_for(CallToolResult).decode(task.result)
    except msgspec.MsgspecError:  # `genmcp tasks follow` reports it
        return False
    return task.status == "completed" and result.is_error


def _fields(task: DetailedTask) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of what is known of *task*."""
    yield "id", task.task_id
    hint = " (the result is an error: `genmcp tasks follow` shows it)" if _has_failed(task) else ""
    yield "state", task.status + hint
    yield "created", task.created_at
    yield "updated", task.last_updated_at
    if task.ttl_ms is not None:
        yield "expires", f"{duration(task.ttl_ms / 1000)} after its creation"
    if text := _progress_text(task):
        yield "progress", text
    if task.status_message:
        yield "message", task.status_message
    if task.input_requests:
        for question in _questions(task).values():
            yield "question", question.params.message
            for line in argument_texts(question.params.requested_schema or {}):
                yield "", line
            if question.params.url is not None:
                yield "", question.params.url


def _questions(task: DetailedTask) -> Questions:
    """Return the open questions of *task*.

    Raises:
        CommandError: there are none, or one that no user can answer.
    """
    if not task.input_requests:
        raise CommandError(f"the task asks nothing: it is {task.status}")
    questions = {}
    for key, raw in task.input_requests.items():
        try:
            request = decoder_for(InputRequest).decode(raw)
        except msgspec.MsgspecError as error:
            raise CommandError(f"the task has a malformed question: {error}") from None
        if not isinstance(request, ElicitRequest):
            raise CommandError("the task asks for a model or for roots, which this command has not")
        questions[key] = request
    return questions


def _answers(questions: Questions, pairs: Sequence[str]) -> dict[str, ElicitResult]:
    """Return the answer by *pairs*, converted and checked by the form of the only question.

    Raises:
        ConfigurationError: there are several questions, or the answer does not fit the form.
    """
    if len(questions) > 1:
        raise ConfigurationError(
            f"the task asks {len(questions)} questions: `genmcp tasks follow` prompts for each"
        )
    ((key, question),) = questions.items()
    if question.params.url is not None:
        if pairs:
            raise ConfigurationError("the question is a URL, which takes no key=value")
        return {key: ElicitResult("accept")}
    schema = question.params.requested_schema or {}
    content = convert_arguments(schema, pairs)
    for name, field in properties_of(schema).items():
        if isinstance(field, Mapping) and "default" in field:
            content.setdefault(name, field["default"])
    check_arguments(schema, content)
    return {key: ElicitResult("accept", content)}

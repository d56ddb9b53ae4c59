"""`genmcp tasks`: the tasks of a server, as their client sees them."""

import asyncio
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

import click
import msgspec

from genmcp.cancellation import cancel_and_wait
from genmcp.cli.describe import argument_texts
from genmcp.cli.output import CommandError, OutputWriter, duration, one_line, private_output
from genmcp.cli.parsing import TASK_ID, Group, TaskCommand, example, options_as
from genmcp.cli.remote import run_remote, write_result
from genmcp.cli.started import StartedTask, started_tasks
from genmcp.cli.target import RemoteOptions, call_options, parse_target, remote_options
from genmcp.cli.terminal import DeferringHandler, StatusLine
from genmcp.cli.values import check_arguments, convert_arguments, properties_of
from genmcp.client.client import Client
from genmcp.client.errors import ClientError, ServerError
from genmcp.client.tasks import TaskHandle
from genmcp.errors import ConfigurationError, McpError
from genmcp.protocol.client_features import ElicitRequest, ElicitResult, InputRequest
from genmcp.protocol.tasks import PROGRESS, DetailedTask
from genmcp.protocol.tools import CallToolResult
from genmcp.protocol.value import decoder_for

Questions = Mapping[str, ElicitRequest]

_HEADINGS: Final = ("ID", "STATE", "TOOL", "STARTED", "DETAILS")
_SILENCE: Final = 3.0  # seconds without progress, after which the server is asked why
_OPEN: Final = ("working", "input_required")  # the states of a task that has not ended
_URL: Final = "http://127.0.0.1:8000/mcp"  # of the examples
_LOCAL_HEADINGS: Final = ("ID", "TOOL", "STARTED", "SERVER")

_task: Final = click.argument("id", required=False, type=TASK_ID)
_ABOUT: Final = "Without ID: the last task that was started at TARGET, which is usually a URL."


@click.group("tasks", cls=Group)
def tasks() -> None:
    """List, show, follow, answer and cancel tasks of a server."""


@tasks.command("list", epilog=example("tasks list", "tasks list http://127.0.0.1:8000/mcp"))
@options_as(RemoteOptions, click.argument("target", default=""), *call_options)
def list_tasks(options: RemoteOptions) -> None:
    """List the tasks that were started by `genmcp call --detach`; those of TARGET with states."""
    found = started_tasks(_url_of(options) if options.target else None)
    if not found:
        place = f" at {options.target}" if options.target else ""
        sys.stderr.write(f"genmcp: no tasks were started{place} with --detach\n")
    if not options.target:
        with private_output(options.output) as output:
            if options.json:
                output.write_json(found)
            else:
                rows = [[each.id, each.tool, _ago(each), each.url] for each in found]
                output.write_table(_LOCAL_HEADINGS, rows)
        return

    async def fetch(client: Client, status: StatusLine) -> list[DetailedTask | None]:
        return [await _find(client, each.id) for each in found]

    def write(output: OutputWriter, states: list[DetailedTask | None]) -> None:
        rows = [_row(*each) for each in zip(found, states, strict=True)]
        output.write_table(_HEADINGS, rows)

    run_remote(options, fetch, write, DeferringHandler)


@tasks.command("show", cls=TaskCommand, epilog=example(f"tasks show {_URL}", about=_ABOUT))
@remote_options
@_task
def show_task(options: RemoteOptions, id: str | None) -> None:
    """Show a task: its state, its progress and its questions."""
    started = _started(options, id)

    async def fetch(client: Client, status: StatusLine) -> DetailedTask:
        return await client.task(started.id).status()

    def write(output: OutputWriter, task: DetailedTask) -> None:
        for name, text in _fields(task, started):
            output.write_line(f"{name:8}  {one_line(text)}")

    run_remote(options, fetch, write, DeferringHandler)


@tasks.command("follow", cls=TaskCommand, epilog=example(f"tasks follow {_URL}", about=_ABOUT))
@remote_options
@_task
def follow_task(options: RemoteOptions, id: str | None) -> int:
    """Wait for the result of a task, and prompt for its questions at a terminal."""
    started = _started(options, id)

    async def fetch(client: Client, status: StatusLine) -> CallToolResult:
        handle = client.task(started.id, tool=started.tool or None)
        watching = asyncio.ensure_future(_show_silence(handle, status))
        try:
            return await handle.wait(progress=status.show_progress, timeout=options.timeout)
        finally:
            await cancel_and_wait(watching)

    return int(run_remote(options, fetch, write_result, DeferringHandler).is_error)


@tasks.command("result", cls=TaskCommand, epilog=example(f"tasks result {_URL}", about=_ABOUT))
@remote_options
@_task
def task_result(options: RemoteOptions, id: str | None) -> int:
    """Write the result of a task. The status is 1 if it has none yet, or if it is an error."""
    started = _started(options, id)

    async def fetch(client: Client, status: StatusLine) -> CallToolResult:
        handle = client.task(started.id, tool=started.tool or None)
        state = (await handle.status()).status
        if state in _OPEN:
            raise CommandError(f"the task has no result yet: it is {state}")
        return await handle.wait()

    return int(run_remote(options, fetch, write_result, DeferringHandler).is_error)


@tasks.command("cancel", cls=TaskCommand, epilog=example(f"tasks cancel {_URL}", about=_ABOUT))
@remote_options
@_task
def cancel_task(options: RemoteOptions, id: str | None) -> int:
    """Cancel a task. The status is 1 if it had ended before."""
    started = _started(options, id)
    ended = False

    async def fetch(client: Client, status: StatusLine) -> DetailedTask:
        nonlocal ended
        handle = client.task(started.id)
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
        f"tasks answer {_URL} size=large",
        f"tasks answer {_URL} --decline",
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
    options: RemoteOptions, id: str | None, pairs: Sequence[str], accept: bool, decline: bool
) -> None:
    """Answer the open questions of a task by KEY=VALUE; `genmcp tasks follow` prompts for them."""
    if id is not None and "=" in id:  # the id was left out
        pairs = [id, *pairs]
        id = None
    if bool(pairs or accept) is decline:
        raise ConfigurationError(
            "give one answer: key=value, --accept or --decline; `genmcp tasks follow` prompts"
        )
    started = _started(options, id)

    async def fetch(client: Client, status: StatusLine) -> DetailedTask:
        handle = client.task(started.id)
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


def _url_of(options: RemoteOptions) -> str:
    """Return the URL of the target; the target itself, if it has none."""
    target = options.target
    if target.endswith(".json"):
        found = parse_target(target, options.server).target
        return found if isinstance(found, str) else target
    return target


def _started(options: RemoteOptions, id: str | None) -> StartedTask:
    """Return the task *id*, by default the last one that was started at the target.

    Raises:
        ConfigurationError: no id was given, and none was started.
    """
    url = _url_of(options)
    found = [each for each in started_tasks(url) if id in (None, each.id)]
    if found:
        return found[-1]
    if id is None:
        raise ConfigurationError(f"no task was started at {url} with --detach: give its id")
    return StartedTask(id, url, "", 0.0)


async def _show_silence(handle: TaskHandle, status: StatusLine) -> None:
    """Show the state of the task while there is no progress. Runs until it is cancelled."""
    while True:
        await asyncio.sleep(_SILENCE)
        if status.silence >= _SILENCE:
            with suppress(ClientError, McpError):  # `wait` reports it
                task = await handle.status()
                if task.status == "working":
                    status.show_silence(task.status_message)


async def _find(client: Client, id: str) -> DetailedTask | None:
    try:
        return await client.task(id).status()
    except ServerError:  # it has expired
        return None


def _ago(started: StartedTask) -> str:
    return f"{duration(time.time() - started.started)} ago"


def _row(started: StartedTask, task: DetailedTask | None) -> list[str]:
    if task is None:
        return [started.id, "unknown", started.tool, _ago(started), "it may have expired"]
    details = ", ".join(filter(None, [_progress_text(task), task.status_message]))
    return [started.id, task.status, started.tool, _ago(started), details]


def _progress_text(task: DetailedTask) -> str:
    match (task.meta or {}).get(PROGRESS):
        case {"progress": int() | float() as done, **rest}:
            total = rest.get("total")
            text = f"{done:g}/{total:g}" if isinstance(total, int | float) else f"{done:g}"
            return f"{text} {rest.get('message') or ''}".rstrip()
    return ""


def _fields(task: DetailedTask, started: StartedTask) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of what is known of *task*."""
    yield "id", task.task_id
    yield "state", task.status
    if started.tool:
        yield "tool", started.tool
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

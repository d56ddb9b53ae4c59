"""`genmcp tasks`: the tasks of a server, as their client sees them."""

import asyncio
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from genmcp.cancellation import cancel_and_wait
from genmcp.cli.describe import argument_texts
from genmcp.cli.output import OutputError, OutputWriter, duration, one_line, private_output
from genmcp.cli.parsing import ID, argument, command, group, option, options_as
from genmcp.cli.remote import (
    RemoteOptions,
    remote_options,
    remote_parameters,
    run_remote,
    write_result,
)
from genmcp.cli.started import StartedTask, started_tasks
from genmcp.cli.target import TargetCommand, parse_target
from genmcp.cli.terminal import DeferringHandler, StatusLine, TerminalHandler, has_user
from genmcp.cli.values import check_arguments, convert_arguments, properties_of
from genmcp.client.client import Client
from genmcp.client.errors import ClientError, ServerError
from genmcp.client.tasks import TaskHandle
from genmcp.errors import ConfigurationError, McpError
from genmcp.protocol.client_features import ElicitRequest, ElicitResult, InputRequest
from genmcp.protocol.tasks import PROGRESS, DetailedTask
from genmcp.protocol.tools import CallToolResult
from genmcp.protocol.value import decoder_for
from genmcp.question.question import Accepted, Cancelled

Questions = Mapping[str, ElicitRequest]

_HEADINGS: Final = ("ID", "STATE", "TOOL", "STARTED", "DETAILS")
_SILENCE: Final = 3.0  # seconds without progress, after which the server is asked why
_LOCAL_HEADINGS: Final = ("ID", "TOOL", "STARTED", "SERVER")

tasks: Final = group("tasks", "list, show, follow, answer and cancel tasks of a server")
"""The commands for the tasks of a server."""

_task: Final = argument(
    "id", "the task; the last one that was started here, if it is left out", required=False, type=ID
)


@command("list", "list the tasks that were started with `genmcp call --detach`")
@options_as(
    RemoteOptions,
    argument("target", "the server, which is asked for their states", default=""),
    *remote_parameters[1:],
)
def list_tasks(options: RemoteOptions) -> int:
    """List the tasks that this user has started; with a target, with their states."""
    if not options.target:
        found = started_tasks()
        with private_output() as output:
            _write_local(options, output, found)
        return 0
    found = started_tasks(_url_of(options))

    async def fetch(client: Client, status: StatusLine) -> list[DetailedTask | None]:
        return [await _find(client, each.id) for each in found]

    def write(output: OutputWriter, states: list[DetailedTask | None]) -> None:
        rows = [_row(*each) for each in zip(found, states, strict=True)]
        if not rows:
            _report_none(options)
        output.write_table(_HEADINGS, rows)

    return run_remote(options, fetch, write, DeferringHandler)


@command("show", "show a task: its state, its progress and its questions", TargetCommand)
@remote_options
@_task
def show_task(options: RemoteOptions, id: str | None) -> int:
    """Show the state of a task."""
    started = _started(options, id)

    async def fetch(client: Client, status: StatusLine) -> DetailedTask:
        return await client.task(started.id).status()

    def write(output: OutputWriter, task: DetailedTask) -> None:
        for name, text in _fields(task, started):
            output.write_line(f"{name:8}  {one_line(text)}")

    return run_remote(options, fetch, write, DeferringHandler)


@command("follow", "wait for the result of a task, and answer its questions", TargetCommand)
@remote_options
@_task
def follow_task(options: RemoteOptions, id: str | None) -> int:
    """Wait for the result of a task; the questions are prompted for at a terminal."""
    started = _started(options, id)
    failed = False

    async def fetch(client: Client, status: StatusLine) -> CallToolResult:
        nonlocal failed
        handle = client.task(started.id, tool=started.tool or None)
        watching = asyncio.ensure_future(_show_silence(handle, status))
        try:
            result = await handle.wait(progress=status.show_progress, timeout=options.timeout)
        finally:
            await cancel_and_wait(watching)
        failed = result.is_error
        return result

    return run_remote(options, fetch, write_result, DeferringHandler) or int(failed)


@command("result", "write the result of a task that has ended", TargetCommand)
@remote_options
@_task
def task_result(options: RemoteOptions, id: str | None) -> int:
    """Write the result of a task. The exit status is 1 if it has none, or if it is an error."""
    started = _started(options, id)
    failed = False

    async def fetch(client: Client, status: StatusLine) -> CallToolResult:
        nonlocal failed
        handle = client.task(started.id, tool=started.tool or None)
        state = (await handle.status()).status
        if state in ("working", "input_required"):
            raise OutputError(f"the task has no result yet: it is {state}")
        result = await handle.wait()
        failed = result.is_error
        return result

    return run_remote(options, fetch, write_result, DeferringHandler) or int(failed)


@command("cancel", "cancel a task", TargetCommand)
@remote_options
@_task
def cancel_task(options: RemoteOptions, id: str | None) -> int:
    """Cancel a task. The exit status is 1 if it had ended before."""
    started = _started(options, id)
    cancelled = False

    async def fetch(client: Client, status: StatusLine) -> DetailedTask:
        nonlocal cancelled
        handle = client.task(started.id)
        ended = (await handle.status()).status not in ("working", "input_required")
        if not ended:
            await handle.cancel()
        task = await handle.status()
        cancelled = not ended
        return task

    def write(output: OutputWriter, task: DetailedTask) -> None:
        before = "" if cancelled else " before"
        output.write_line(f"{one_line(task.task_id)}: {task.status}{before}")

    return run_remote(options, fetch, write, DeferringHandler) or int(not cancelled)


@command("answer", "answer the questions of a task", TargetCommand)
@remote_options
@_task
@argument("pairs", "the fields of the form", nargs=-1, metavar="[KEY=VALUE]...")
@option("--accept", is_flag=True, help="accept a question without fields, or with their defaults")
@option("--decline", is_flag=True, help="decline the questions")
def answer_task(
    options: RemoteOptions, id: str | None, pairs: Sequence[str], accept: bool, decline: bool
) -> int:
    """Answer the open questions of a task: by the arguments, or by prompts at a terminal."""
    if id is not None and "=" in id:  # the id was left out
        pairs = [id, *pairs]
        id = None
    if decline and (accept or pairs):
        raise ConfigurationError("--decline cannot be combined with an answer")
    started = _started(options, id)

    async def fetch(client: Client, status: StatusLine) -> DetailedTask:
        handle = client.task(started.id)
        questions = _questions(await handle.status())
        if decline:
            answers = {key: ElicitResult("decline") for key in questions}
        elif accept or pairs:
            answers = _answers(questions, pairs)
        elif has_user():
            answers = await _ask(questions, TerminalHandler(status))
        else:
            raise ConfigurationError("give the answer: key=value, --accept or --decline")
        await handle.update(answers)
        return await handle.status()

    def write(output: OutputWriter, task: DetailedTask) -> None:
        output.write_line(f"{one_line(task.task_id)}: {task.status}")

    return run_remote(options, fetch, write, DeferringHandler)


for _each in (list_tasks, show_task, follow_task, answer_task, cancel_task, task_result):
    tasks.add_command(_each)


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


def _report_none(options: RemoteOptions) -> None:
    place = f" at {options.target}" if options.target else ""
    sys.stderr.write(f"genmcp: no tasks were started{place} with --detach\n")


def _write_local(
    options: RemoteOptions, output: OutputWriter, found: Sequence[StartedTask]
) -> None:
    if options.json:
        output.write_json(found)
        return
    if not found:
        _report_none(options)
    rows = [[each.id, each.tool, _ago(each), each.url] for each in found]
    output.write_table(_LOCAL_HEADINGS, rows)


def _ago(started: StartedTask) -> str:
    return f"{duration(time.time() - started.started)} ago"


def _row(started: StartedTask, task: DetailedTask | None) -> list[str]:
    if task is None:
        return [started.id, "unknown", started.tool, _ago(started), "it may have expired"]
    details = [_progress_text(task), task.status_message or ""]
    return [
        started.id,
        task.status,
        started.tool,
        _ago(started),
        ", ".join(filter(None, details)),
    ]


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
        OutputError: there are none, or one that no user can answer.
    """
    if not task.input_requests:
        raise OutputError(f"the task asks nothing: it is {task.status}")
    questions = {}
    for key, raw in task.input_requests.items():
        try:
            request = decoder_for(InputRequest).decode(raw)
        except msgspec.MsgspecError as error:
            raise OutputError(f"the task has a malformed question: {error}") from None
        if not isinstance(request, ElicitRequest):
            raise OutputError("the task asks for a model or for roots, which this command has not")
        questions[key] = request
    return questions


def _answers(questions: Questions, pairs: Sequence[str]) -> dict[str, ElicitResult]:
    """Return the answer by *pairs*, converted and checked by the form of the only question.

    Raises:
        ConfigurationError: there are several questions, or the answer does not fit the form.
    """
    if len(questions) > 1:
        raise ConfigurationError(
            f"the task asks {len(questions)} questions: answer them at a terminal, without pairs"
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


async def _ask(questions: Questions, terminal: TerminalHandler) -> dict[str, ElicitResult]:
    """Return the answers of the user.

    Raises:
        OutputError: the user left a question.
    """
    answers = {}
    for key, question in questions.items():
        params = question.params
        if params.url is not None:
            answer = await terminal.handle_url_elicitation(params.message, params.url)
        else:
            schema = params.requested_schema or {}
            answer = await terminal.handle_elicitation_create(params.message, schema)
        match answer:
            case Cancelled():
                raise OutputError("the question was not answered")
            case Accepted(content):
                given: Any = None if params.url is not None else content
                answers[key] = ElicitResult("accept", given)
            case _:
                answers[key] = ElicitResult("decline")
    return answers

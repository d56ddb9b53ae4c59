"""The HTML pages."""

from html import escape

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse
from starlette.routing import Route

from example_app.workshop import Part, Refusal, Workshop

__all__ = ["PAGES", "page", "workshop_of"]

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
  body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; }}
  table {{ border-collapse: collapse; width: 100%; }}
  td, th {{ border-bottom: 1px solid #ddd; padding: .3rem .6rem; text-align: left; }}
  .low {{ color: #b00; font-weight: bold; }}
</style>
<nav>
  <a href="/">Parts</a> <a href="/live">Live</a> <a href="/repairs">Repairs</a>
  <a href="/mcp">MCP console</a>
</nav>
<h1>{title}</h1>
{body}
</html>
"""

PARTS = "<table><tr><th>Part<th>Name<th>Quantity<th>By</tr>"


# `def`: Starlette runs it in a thread, since SQLite blocks.
def stock(request: Request) -> HTMLResponse:
    """List the parts in stock; `?q=` searches."""
    text = request.query_params.get("q", "")
    found = workshop_of(request).parts(text)
    return page(
        "Parts in stock",
        f'<form><input name="q" value="{escape(text)}" placeholder="number or name">'
        f" <button>Search</button></form>"
        f"<p>{len(found)} parts. You are {escape(request.state.user)}.</p>"
        f"<table><tr><th>Number<th>Name<th>Shelf<th>Price<th>Stock</tr>"
        f"{''.join(map(part_row, found))}</table>",
    )


def part_row(part: Part) -> str:
    low = ' class="low"' if part.stock < part.minimum else ""
    return (
        f"<tr><td>{escape(part.number)}<td>{escape(part.name)}<td>{escape(part.shelf)}"
        f"<td>{money(part.price)}<td{low}>{part.stock}</tr>"
    )


def repairs(request: Request) -> HTMLResponse:
    """List all repairs."""
    rows = "".join(
        f'<tr><td><a href="/repairs/{repair.id}">{repair.id}</a><td>{escape(repair.bicycle)}'
        f"<td>{escape(repair.customer)}<td>{escape(repair.opened)}"
        f"<td>{escape(repair.closed or 'open')}</tr>"
        for repair in workshop_of(request).repairs(closed=True)
    )
    return page(
        "Repairs",
        f"<table><tr><th>Number<th>Bicycle<th>Customer<th>Opened<th>Closed</tr>{rows}</table>",
    )


def sheet(request: Request) -> HTMLResponse:
    """Show one repair."""
    try:
        found = workshop_of(request).sheet(request.path_params["id"])
    except Refusal as refusal:
        raise HTTPException(404, str(refusal)) from refusal
    lines = "".join(
        f"<tr><td>{escape(line.part)}<td>{escape(line.name)}<td>{line.quantity}"
        f"<td>{escape(line.user)}</tr>"
        for line in found.parts
    )
    return page(
        f"Repair {found.id}: {found.bicycle}",
        f"<p>For {escape(found.customer)}, since {escape(found.opened)}"
        f"{f', closed {escape(found.closed)}' if found.closed else ''}.</p>"
        f"<ul>{''.join(f'<li>{escape(item)}' for item in found.checklist)}</ul>"
        f"{f'{PARTS}{lines}</table>' if lines else '<p>No parts have been taken for it.</p>'}"
        f"<p>Parts: {money(found.cost)}</p>",
    )


def health(request: Request) -> JSONResponse:
    """Report that the database can be read."""
    return JSONResponse({"status": "ok", "parts": len(workshop_of(request).parts())})


def workshop_of(request: Request) -> Workshop:
    workshop: Workshop = request.app.state.workshop
    return workshop


def page(title: str, body: str) -> HTMLResponse:
    return HTMLResponse(PAGE.format(title=escape(title), body=body))


def money(cents: int) -> str:
    return f"{cents / 100:.2f} €"


PAGES = [
    Route("/", stock),
    Route("/repairs", repairs),
    Route("/repairs/{id:int}", sheet),
    Route("/health", health),
]

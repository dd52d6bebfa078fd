"""The cockpit's addresses: pages, what is live of them, log-in and log-out, and files of the package.

Handlers run in the controller's loop. Every page asks who looks first; every form carries the session's secret, and
must come from our own page. Errors are pages, too. Called by `wiring/controller.py` through `handlers`.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec
from litestar import Request, Response, Router, get, post
from litestar.exceptions import HTTPException
from litestar.params import FromPath, FromQuery
from litestar.response import Redirect, Stream
from litestar.status_codes import HTTP_200_OK, HTTP_303_SEE_OTHER

from holdfast import __version__
from holdfast.api.auth import LOCAL, Identity, Role
from holdfast.api.newest import check_newest
from holdfast.api.tenants import Scope
from holdfast.cockpit import deeds, files, rendering
from holdfast.cockpit.cockpit import CHARTED, Cockpit
from holdfast.cockpit.pages import Page
from holdfast.cockpit.sessions import COOKIE, Session, cookie, is_from_here, is_same
from holdfast.errors import HoldfastError, JournalError, LinkError, NotFoundError, RefusedError

FORM_MAX = 512 * 1024
"""Bytes of a form: a policy file fits many times."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
"""No script but the package's files runs, whatever a page holds. Plotly draws heat maps as `data:` images."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
HTML = "text/html; charset=utf-8"
LIVE_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "Content-Type": "text/event-stream"}


class LogInError(RefusedError):
    """Nobody is logged in: the log-in page is shown."""


def router(cockpit: Cockpit) -> Router:
    """All of it, over one cockpit."""
    return Router(
        "/",
        route_handlers=[*HANDLERS],
        exception_handlers={HTTPException: _on_error, HoldfastError: _on_error},
        before_request=_newest,
        response_headers=HEADERS,
        include_in_schema=False,
        request_max_body_size=FORM_MAX,
        opt={"cockpit": lambda: cockpit},  # a function, because options are copied deeply
    )


async def _newest(request: Request[Any, Any, Any]) -> None:
    """Have no page shown by a controller that was superseded. Files of the package, which errors need, stay."""
    if not request.url.path.startswith("/static/"):
        await check_newest(request.app.state.controller)


def of(request: Request[Any, Any, Any]) -> Cockpit:
    """The cockpit that a request is for."""
    found: Cockpit = request.route_handler.opt["cockpit"]()
    return found


# --- who looks ---


def looker(request: Request[Any, Any, Any], *, job: str = "", keeps_to_scope: bool = False) -> Session:
    """The session of whoever looks, who may at least read.

    Args:
        request: of the page.
        job: the page is about this job alone; empty: it is about more.
        keeps_to_scope: what follows shows or does nothing beyond the scope of a token.

    Raises:
        LogInError: nobody is logged in.
        RefusedError: this page is not in the scope of the token.
    """
    session = of(request).sessions.of(request)
    if session is None:
        raise LogInError("log in first")
    scope = Scope(session.identity, of(request).fleet)
    if not (scope.is_whole or keeps_to_scope or (job and scope.has_page(job))):
        sees = ", ".join(session.identity.sees)
        raise RefusedError(
            f"your token sees {sees}, and this page may show more: /v1/jobs lists your jobs, /jobs/ID shows one "
            "that had no trouble together with others' jobs"
        )
    return session


async def writer(request: Request[Any, Any, Any], *, keeps_to_scope: bool = False) -> tuple[Session, dict[str, str]]:
    """The session and the form of a request that changes something.

    Raises:
        LogInError, RefusedError: nobody is logged in, or the form is not ours.
    """
    session = looker(request, keeps_to_scope=keeps_to_scope)
    form = await _form(request)
    if not is_from_here(request) or not is_same(session.csrf, form.get("csrf", "")):
        raise RefusedError("this form did not come from a page of this session: go back, load the page anew, try again")
    return session, form


async def _form(request: Request[Any, Any, Any]) -> dict[str, str]:
    found = await request.form()
    return {name: value for name, value in found.items() if isinstance(value, str)}


def local_path(text: str) -> str:
    """An address within the cockpit; anything else becomes the overview."""
    parts = urlsplit(text)
    odd = parts.scheme or parts.netloc or not text.startswith("/") or text.startswith(("//", "/\\"))
    return "/" if odd or any(ord(char) < 32 or char == "\\" for char in text) else text


def is_secure(request: Request[Any, Any, Any]) -> bool:
    """Is the browser's line encrypted, here or at a proxy?"""
    return request.url.scheme == "https" or request.headers.get("x-forwarded-proto", "") == "https"


# --- pages ---


async def page(request: Request[Any, Any, Any], kind: str, name: str = "", **more: Any) -> Response[str]:
    """A whole page for whoever asks."""
    cockpit = of(request)
    await cockpit.ready.wait()
    fresh = ""
    if cockpit.sessions.is_open_to_all and cockpit.sessions.of(request) is None:
        fresh = cockpit.sessions.open(LOCAL)
        session = cockpit.sessions.find(fresh)
        if session is None:
            raise LogInError("log in first")
    else:
        session = looker(request, job=name if kind == "job" else "")
    query = str(request.url.query or "")
    live = f"{kind}:{name}" if name else kind
    template, values = await cockpit.pages.values(Page(kind, name, Page.parse(f"?{query}").asked))
    own = personal(request, session, live, query) | {"may_operate": may_order(session.identity, values)}
    html = rendering.whole(template, values | own | more)
    answer = Response(html, media_type=HTML)
    if fresh:
        answer.set_cookie(cookie(fresh, secure=is_secure(request)))
    return answer


def may_order(identity: Identity, values: dict[str, Any]) -> bool:
    """Does the page have forms for this person? An owner has them on their own jobs' pages and on those jobs' orders.

    What is sent is judged anew by `api.operate`.
    """
    is_own = identity.role is Role.OWNER and values.get("owner", "") == identity.name
    return is_own or identity.may(Role.OPERATOR)


def personal(request: Request[Any, Any, Any], session: Session, live: str, query: str) -> dict[str, Any]:
    """What depends on who looks."""
    flash, bad = session.flash, session.flash_is_bad
    draft, session.flash, session.draft = session.draft, "", ""
    return {
        "me": session.identity,
        "csrf": session.csrf,
        "flash": flash,
        "flash_is_bad": bad,
        "draft_why": draft,
        "live": f"{live}?{query}" if query and ":" not in live else live,
        "here": request.url.path + (f"?{query}" if query else ""),
        "asset": files.address,
        "version": __version__,
        "can_log_out": not of(request).sessions.is_open_to_all,
    }


async def page_or_chart(request: Request[Any, Any, Any], kind: str, name: str, chart: str) -> Response[Any]:
    """A page, or the data of a chart of it, where it has any."""
    if not chart or kind not in CHARTED:
        return await page(request, kind, name)
    looker(request, job=name if kind == "job" else "")
    made = await of(request).chart(Page(kind, name, Page.parse(f"?{request.url.query or ''}").asked), chart)
    return Response(msgspec.json.encode(made), media_type="application/json")


LISTS = ("jobs", "nodes", "incidents", "orders", "audit", "drills", "settings", "validation", "efficiency")
ONE_OF = {"jobs": "job", "nodes": "node", "orders": "order", "validation": "validation"}
"""First part of the address of one thing -> its page."""


@get(["/", *(f"/{kind}" for kind in LISTS)])
async def a_list(request: Request[Any, Any, Any], chart: FromQuery[str] = "") -> Response[Any]:
    """The fleet at a glance, jobs, nodes, incidents, orders, audit and the other pages without a name."""
    return await page_or_chart(request, request.url.path.strip("/") or "overview", "", chart)


@get([f"/{kind}/{{name:path}}" for kind in ONE_OF])
async def one_thing(request: Request[Any, Any, Any], name: FromPath[str], chart: FromQuery[str] = "") -> Response[Any]:
    """One job, one node, one order, where a person says yes or no, or what validations said of one node."""
    return await page_or_chart(request, ONE_OF[request.url.path.split("/")[1]], named(name), chart)


@get("/incidents/{name:path}")
async def an_incident(
    request: Request[Any, Any, Any], name: FromPath[str], policy: FromQuery[str] = ""
) -> Response[str]:
    """One incident; with `policy`, beside what that preset would have done."""
    cockpit = of(request)
    found = None
    if policy:
        looker(request)
        found = await cockpit.replayer.ask(named(name), policy[:100])
    more = {"presets": sorted(cockpit.replayer.presets), "asked_policy": policy, "what_if": found}
    return await page(request, "incident", named(name), **more)


@post("/settings", status_code=HTTP_200_OK)
async def change_policy(request: Request[Any, Any, Any]) -> Response[Any]:
    """Check a policy and show the difference; then, in a second step, let it hold."""
    session, form = await writer(request)
    settings = of(request).settings
    if form.get("deed") != "apply":
        return await page(request, "settings", draft=settings.check(form))
    try:
        seq = await settings.apply(session.identity, form)
    except HoldfastError as error:
        session.flash, session.flash_is_bad = f"Not done: {error}", True
        return await page(request, "settings", draft=settings.check(form))
    session.flash, session.flash_is_bad = f"The policy holds from event {seq} on.", False
    return Redirect("/settings", status_code=HTTP_303_SEE_OTHER)


@post("/drills", status_code=HTTP_303_SEE_OTHER)
async def run_drill(request: Request[Any, Any, Any]) -> Redirect:
    """Begin a drill on a cluster of its own, or stop the one under way."""
    session, form = await writer(request)
    room = of(request).drills
    why = " ".join(form.get("why", "").split())[:1000]
    try:
        if form.get("deed") == "stop":
            if not session.identity.may(Role.OPERATOR):
                raise RefusedError("stopping a run needs an operator's token")
            await room.stop(session.identity.name)
            session.flash, session.flash_is_bad = "The run was stopped.", False
        else:
            room.start(session.identity, [form.get("drill", "")], why)
            session.flash, session.flash_is_bad = "The drill runs; what it says appears here.", False
    except HoldfastError as error:
        session.flash, session.flash_is_bad = f"Not done: {error}", True
    return Redirect("/drills", status_code=HTTP_303_SEE_OTHER)


@post("/operate", status_code=HTTP_303_SEE_OTHER)
async def operate(request: Request[Any, Any, Any]) -> Redirect:
    """A person's word. What came of it stands on the page that follows."""
    session, form = await writer(request, keeps_to_scope=True)
    session.flash, session.flash_is_bad = await deeds.deed(
        of(request).controller, session.identity, form, request.app.state.tokens
    )
    session.draft = form.get("why", "")[:2000] if session.flash_is_bad else ""
    return Redirect(local_path(form.get("next", "/")), status_code=HTTP_303_SEE_OTHER)


def named(text: object) -> str:
    """The name at the end of an address: it may hold anything that a scheduler lets through."""
    return str(text).removeprefix("/")


@get("/live")
async def live(request: Request[Any, Any, Any], on: FromQuery[str] = "overview", since: FromQuery[int] = 0) -> Stream:
    """What changes on a page, as server-sent events."""
    looker(request)
    cockpit = of(request)
    await cockpit.ready.wait()
    if cockpit.hub.is_full:
        raise LinkError("so many pages are open that no further one is kept up to date: load this page anew later")
    await cockpit.pages.values(Page.parse(on[:400]))
    resumed = request.headers.get("last-event-id", "")
    seq = int(resumed) if resumed.isdecimal() and len(resumed) < 16 else since
    return Stream(cockpit.hub.follow(on[:400], seq), headers=LIVE_HEADERS, media_type="text/event-stream")


# --- coming and going ---


@get("/login")
async def log_in_page(request: Request[Any, Any, Any]) -> Response[str]:
    """Where a person hands over a token."""
    return _log_in_form(local_path(str(request.query_params.get("next", "/"))), "")


def _log_in_form(following: str, why: str, status: int = 200) -> Response[str]:
    values = {"why": why, "next": following, "asset": files.address, "version": __version__}
    return Response(rendering.whole("login.html", values), media_type=HTML, status_code=status)


@post("/login", status_code=HTTP_200_OK)
async def log_in(request: Request[Any, Any, Any]) -> Response[Any]:
    """Open a session for a token; the one that the browser had is ended."""
    form = await _form(request)
    following = local_path(form.get("next", "/"))
    if not is_from_here(request):
        raise RefusedError("this form did not come from a page of this controller")
    sessions = of(request).sessions
    address = request.client.host if request.client is not None else ""
    try:
        secret = sessions.log_in(form.get("token", "")[:500], address)
    except RefusedError as error:
        return _log_in_form(following, f"{str(error)[0].upper()}{str(error)[1:]}.", 403)
    if secret is None:
        return _log_in_form(following, "That token is not accepted, or too many were wrong: wait a minute.", 403)
    sessions.end(request.cookies.get(COOKIE))
    answer = Redirect(following, status_code=HTTP_303_SEE_OTHER)
    answer.set_cookie(cookie(secret, secure=is_secure(request)))
    return answer


@post("/logout", status_code=HTTP_303_SEE_OTHER)
async def log_out(request: Request[Any, Any, Any]) -> Redirect:
    """End the session, here and in the browser."""
    await writer(request, keeps_to_scope=True)
    of(request).sessions.end(request.cookies.get(COOKIE))
    answer = Redirect("/login", status_code=HTTP_303_SEE_OTHER)
    answer.delete_cookie(COOKIE)
    return answer


# --- files ---


@get("/static/{name:str}", response_headers={"Cache-Control": "public, max-age=31536000, immutable"})
async def static(request: Request[Any, Any, Any], name: FromPath[str]) -> Response[bytes]:
    """A file of the package, by name from a fixed list; Plotly's script among them."""
    body, media_type, encoding = files.get(name, gzip="gzip" in request.headers.get("accept-encoding", ""))
    return Response(body, media_type=media_type, headers={"Content-Encoding": encoding} if encoding else {})


# --- errors ---


def _on_error(request: Request[Any, Any, Any], error: Exception) -> Response[Any]:
    if isinstance(error, LogInError):
        following, query = request.url.path if request.method == "GET" else "/", str(request.url.query or "")
        following += f"?{query}" if query and request.method == "GET" else ""
        if request.url.path == "/live":
            return Response("log in first", status_code=403, media_type="text/plain")
        return Redirect("/login?" + urlencode({"next": following}), status_code=HTTP_303_SEE_OTHER)
    status, said = 500, "internal error; the controller's log says more"
    if isinstance(error, HTTPException):
        status, said = error.status_code, error.detail or "that did not work"
    elif isinstance(error, HoldfastError):
        status, said = _STATUS.get(type(error), 400), str(error)
    values = {"status": status, "said": said, "path": request.url.path, "asset": files.address, "version": __version__}
    return Response(rendering.whole("error.html", values), media_type=HTML, status_code=status, headers=HEADERS)


_STATUS: dict[type[Exception], int] = {NotFoundError: 404, RefusedError: 403, LinkError: 503, JournalError: 503}

HANDLERS = [
    a_list, one_thing, an_incident, change_policy, run_drill, operate, live, log_in_page, log_in, log_out, static,
]  # fmt: skip

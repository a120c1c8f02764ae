"""The application: addresses, visitors and answers. Pages and API call the same views and changes."""

from __future__ import annotations

import base64
import binascii
import logging
import secrets
import shlex
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from rucola import __version__
from rucola.common.json_library import orjson
from rucola.console.access.guard import BODY_BYTES_MAX, Guard, Receive, Scope, Send
from rucola.console.access.headers import Origins
from rucola.console.access.login import SignInError, check_account
from rucola.console.access.sessions import BrokerAccount, VisitSession, VisitSessions
from rucola.console.access.throttle import Throttle
from rucola.console.api.openapi import document
from rucola.console.api.query import VALUE_CHARACTERS_MAX, parse_query, query_text
from rucola.console.api.shapes import (
    ApplyRequest,
    ClusterShown,
    ErrorShown,
    MadeShown,
    PlanShown,
    made_shown,
    plan_shown,
)
from rucola.console.api.values import to_json
from rucola.console.bounds import TooManyError
from rucola.console.changes.desk import ChangeDesk, ConfirmError, MovedError, ReadOnlyError, TokenError, change_of
from rucola.console.changes.plan import KindOfChange, PlanError
from rucola.console.cluster.watches import Watches
from rucola.console.config import ClusterAt, ConsoleConfig
from rucola.console.desks import Desks
from rucola.console.pages.render import STATIC, Appearance, Pages
from rucola.console.pages.texts import translate
from rucola.console.views.export import ExportQuery, export_messages
from rucola.console.views.messages import OneMessageQuery, stored_message
from rucola.console.views.sql import SqlPage, SqlQuery, owner_of, result_file, run_sql, start_sql
from rucola.console.views.store import JobRequest, JobShown, change_job
from rucola.console.views.table import VIEWS, View
from rucola.console.visit import BadQueryError, NotFoundError, NotPermittedError, Visit
from rucola.errors import DiskError, RucolaError
from rucola.runtime.clock import Clock
from rucola.runtime.logs import event

logger = logging.getLogger(__name__)

_LOOK: Final = "rucola_look"
_YEAR_S: Final = 365 * 24 * 3600
_VIEWS: Final = {view.path: view for view in VIEWS}


@dataclass(frozen=True, slots=True)
class _Refusal:
    """An answer to a request that cannot be served: status, stable name, and the text for people."""

    status: int
    error: str
    text: str


class SignInNeededError(Exception):
    """The visitor must sign in to a cluster first."""


class Application:
    """The ASGI application. Event loop only.

    Attributes:
        desks: what works for all visitors.
    """

    def __init__(
        self,
        config: ConsoleConfig,
        origins: Origins,
        watches: Watches,
        sessions: VisitSessions,
        changes: ChangeDesk,
        desks: Desks,
        clock: Clock,
    ) -> None:
        self._config, self._watches, self._sessions = config, watches, sessions
        self._changes, self.desks, self._clock = changes, desks, clock
        self._throttle = Throttle(clock.monotonic)
        self._clusters = {cluster.name: cluster for cluster in config.cluster_list}
        self._pages = Pages(config.base_path)
        self._scripts: dict[tuple[str, BrokerAccount], str] = {}
        """Sessions of scripts, which send their account with each request."""
        # Cookies do not tell ports apart.
        self._cookie = f"rucola_session_{config.port}"
        routes = [
            Route("/", self._home),
            Route("/static/{name}", self._static),
            Route("/login", self._login, methods=["GET", "POST"]),
            Route("/logout", self._logout, methods=["POST"]),
            Route("/view", self._set_look, methods=["POST"]),
            Route("/api/openapi.json", self._openapi),
            Route("/api/clusters", self._api_clusters),
            Route("/api/{cluster}/changes", self._api_apply, methods=["POST"]),
            Route("/api/{cluster}/changes/{kind}", self._api_plan, methods=["POST"]),
            Route("/api/{cluster}/message/body", self._api_body),
            Route("/api/{cluster}/messages/export", self._api_export),
            Route("/api/{cluster}/sql", self._api_sql, methods=["POST"]),
            Route("/api/{cluster}/sql/{form}", self._api_sql_file),
            Route("/api/{cluster}/store/job", self._api_job, methods=["POST"]),
            Route("/api/{cluster}/{path}", self._api_view),
            Route("/{cluster}/change/{kind}", self._change, methods=["GET", "POST"]),
            Route("/{cluster}/sql", self._start_sql, methods=["POST"]),
            Route("/{cluster}/store/job", self._job, methods=["POST"]),
            Route("/{cluster}/{path}", self._page),
            Route("/{cluster}/", self._page),
        ]
        handlers: Any = {HTTPException: self._http_error, Exception: self._server_error}
        self._app = Guard(Starlette(routes=routes, exception_handlers=handlers), origins, config.base_path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        await self._app(scope, receive, send)

    # pages

    async def _home(self, _request: Request) -> Response:
        return RedirectResponse(self._pages.url(next(iter(self._clusters)), ""), 303)

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        content = self._pages.static(name)
        if content is None:
            raise HTTPException(404)
        headers = {"cache-control": "public, max-age=3600", "content-type": STATIC[name]}
        return Response(content, headers=headers)

    async def _page(self, request: Request) -> Response:
        view = _VIEWS.get(request.path_params.get("path", ""))
        if view is None or not view.template:
            raise HTTPException(404)
        return await self._paged(request, lambda cookie, visit: self._view_page(request, cookie, visit, view))

    async def _view_page(self, request: Request, cookie: str, visit: Visit, view: View) -> Response:
        query = parse_query(view.query, request.query_params)
        value = await view.show(visit, query)
        self._check_signed_in(visit)
        api = self._api_address(request, visit, view.path or "overview", query)
        values = {
            "title": view.title,
            "under": view.under,
            "value": value,
            "query": query,
            "copies": [*self._command(visit, view.command(query)), api],
            "live": view.live and not view.is_still(value),
        }
        return self._html(request, cookie, view.template, values, visit)

    async def _change(self, request: Request) -> Response:
        change = change_of(request.path_params["kind"])
        if change is None:
            raise HTTPException(404)

        async def answer(cookie: str, visit: Visit) -> Response:
            if request.method != "POST":
                return await self._change_page(request, cookie, visit, change, "", request.query_params)
            form = await self._form(request, visit.session)
            if change.has_content and "token" not in form:
                return await self._change_page(request, cookie, visit, change, "", form)
            return await self._apply_page(request, cookie, visit, change, form)

        return await self._paged(request, answer)

    async def _change_page(
        self,
        request: Request,
        cookie: str,
        visit: Visit,
        change: KindOfChange,
        error: str,
        given: Mapping[str, str],
    ) -> Response:
        """The form of a change and, if it is filled in, what it will do."""
        query, plan, token = change.query(), None, ""
        status = 200
        try:
            query = parse_query(change.query, given, BODY_BYTES_MAX if change.has_content else VALUE_CHARACTERS_MAX)
            if change.fill is not None and request.method != "POST":
                query = await change.fill(visit, query)
            elif change.is_complete(query):
                token, plan = await self._changes.show(visit, change, query)
        except (BadQueryError, PlanError) as wrong:
            error, status = self._said(request, wrong), 400
        self._check_signed_in(visit)
        return self._change_html(
            request, cookie, visit, change, status,
            {"query": query, "plan": plan, "token": token, "made": None, "error": error},
        )  # fmt: skip

    async def _apply_page(
        self, request: Request, cookie: str, visit: Visit, change: KindOfChange, form: Mapping[str, str]
    ) -> Response:
        look, given = self._look(request), request.query_params
        try:
            made = await self._changes.make(visit, form.get("token", ""), form.get("confirm", ""))
        except ConfirmError as error:
            text = translate(look.language, "Type {name} to confirm.", name=error.args[0])
            return await self._change_page(request, cookie, visit, change, text, given)
        except TokenError:
            text = translate(look.language, "This was shown too long ago, or is done already. Look again.")
            return await self._change_page(request, cookie, visit, change, text, given)
        except MovedError:
            text = translate(look.language, "Something has moved meanwhile. Look again at what it will do now.")
            return await self._change_page(request, cookie, visit, change, text, given)
        except PlanError as error:
            return await self._change_page(request, cookie, visit, change, self._said(request, error), given)
        except DiskError as error:
            text = translate(
                look.language, "Nothing was changed, because the audit log cannot be written: {why}", why=error
            )
            return await self._change_page(request, cookie, visit, change, text, given)
        return self._change_html(
            request, cookie, visit, change, 200,
            {"query": change.query(), "plan": None, "token": "", "made": made, "error": ""},
        )  # fmt: skip

    def _change_html(
        self, request: Request, cookie: str, visit: Visit, change: KindOfChange, status: int, values: Mapping[str, Any]
    ) -> Response:
        plan = values["plan"]
        group = visit.watch.poller.snapshot.groups.get(getattr(values["query"], "group", ""))
        more = {
            "title": change.title,
            "under": change.under,
            "kind": change.kind,
            "has_content": change.has_content,
            "copies": self._command(visit, plan.command) if plan is not None else [],
            "suggestions": [part.topic for part in (group.topics if group is not None else None) or ()],
            "live": False,
        }
        return self._html(request, cookie, change.template, {**values, **more}, visit, status)

    async def _start_sql(self, request: Request) -> Response:
        async def answer(_cookie: str, visit: Visit) -> Response:
            form = await self._form(request, visit.session)
            query = parse_query(SqlQuery, form)
            if form.get("do") == "cancel":
                visit.desks.queries.cancel(owner_of(visit))
            else:
                await start_sql(visit, query)
            return RedirectResponse(f"{self._pages.url(visit.cluster, 'sql')}?{query_text(query)}", 303)

        return await self._paged(request, answer)

    async def _job(self, request: Request) -> Response:
        async def answer(_cookie: str, visit: Visit) -> Response:
            job = parse_query(JobRequest, await self._form(request, visit.session))
            await change_job(visit, job)
            return RedirectResponse(self._pages.url(visit.cluster, "store", store=job.store), 303)

        return await self._paged(request, answer)

    async def _paged(self, request: Request, answer: Callable[[str, Visit], Awaitable[Response]]) -> Response:
        """Answers a request for a page, whose visitor gets a session if he has none."""
        cluster = self._cluster(request)
        cookie, session = self._session_of(request)
        try:
            visit = self._visit(request, cluster, session, session.account(cluster.name))
            return await answer(cookie, visit)
        except SignInNeededError:
            back = request.url.path + (f"?{request.url.query}" if request.url.query else "")
            response: Response = RedirectResponse(self._pages.url("login", cluster=cluster.name, back=back), 303)
            self._set_cookie(request, response, cookie)
            return response
        except (
            BadQueryError, NotFoundError, NotPermittedError, ReadOnlyError, TooManyError, RucolaError,
        ) as error:  # fmt: skip
            return self._error_page(request, cookie, cluster, _refusal(error))

    def _error_page(self, request: Request, cookie: str, cluster: ClusterAt | None, refusal: _Refusal) -> Response:
        look = self._look(request)
        headings = {
            400: "Not allowed",
            403: "Refused",
            404: "There is no such thing",
            429: "Too many",
            502: "A server refused",
        }
        heading = translate(look.language, headings.get(refusal.status, "Not allowed"))
        values: dict[str, Any] = {
            "title": heading,
            "heading": heading,
            "error": refusal.text,
            "under": None,
            "copies": [],
            "live": False,
        }
        return self._html(request, cookie, "error.html", values, None, refusal.status, cluster)

    def _html(
        self,
        request: Request,
        cookie: str,
        template: str,
        values: Mapping[str, Any],
        visit: Visit | None,
        status: int = 200,
        cluster: ClusterAt | None = None,
    ) -> Response:
        session = self._sessions.find(cookie)
        about = {
            "cluster": visit.watch.at if visit is not None else cluster,
            "clusters": self._config.cluster_list,
            "account": visit.account.name if visit is not None else "",
            "read_only": visit is not None and not visit.may_change,
            "may_change": visit is not None and visit.may_change,
            "may_see_bodies": visit is not None and visit.may_see_bodies,
            "has_stores": bool(self.desks.explorer.directories),
            "csrf": session.csrf if session is not None else "",
            "here": self._here(request),
            "version": __version__,
            "refresh_ms": max(self._config.refresh_ms, 2_000),
        }
        page = self._pages.render(template, self._look(request), self._clock.wall_ms(), {**about, **values})
        response = HTMLResponse(page, status)
        self._set_cookie(request, response, cookie)
        return response

    # signing in

    async def _login(self, request: Request) -> Response:
        cookie, session = self._session_of(request)
        form = request.query_params if request.method == "GET" else await self._form(request, session)
        cluster = self._clusters.get(form.get("cluster", ""))
        if cluster is None:
            raise HTTPException(404)
        error, status, name = "", 200, form.get("account", "")
        if request.method == "POST":
            account = BrokerAccount(name, form.get("secret", ""))
            error, status = await self._sign_in_error(request, cluster, account)
            if not error:
                read_only = form.get("read_only") == "true"
                cookie, _ = self._sessions.sign_in(cookie, cluster.name, account, read_only)
                event(
                    logger, logging.INFO, "visitor signed in", account=name, cluster=cluster.name, peer=_peer(request)
                )
                response: Response = RedirectResponse(self._back(form.get("back", ""), cluster), 303)
                self._set_cookie(request, response, cookie)
                return response
        values: dict[str, Any] = {
            "title": "Sign in", "under": None, "copies": [], "live": False, "wanted": cluster.name, "name": name,
            "error": error, "back": form.get("back", ""),
        }  # fmt: skip
        return self._html(request, cookie, "login.html", values, None, status)

    async def _sign_in_error(self, request: Request, cluster: ClusterAt, account: BrokerAccount) -> tuple[str, int]:
        """Why an account is not accepted, in the visitor's language, and the status; an empty text if it is."""
        language = self._look(request).language
        keys = f"{cluster.name}/{account.name}", _peer(request)
        wait_s = self._throttle.wait_s(*keys)
        if wait_s > 0:
            return translate(language, "Too many failures: wait {seconds} seconds.", seconds=int(wait_s) + 1), 429
        if not account.name or not account.secret:
            return translate(language, "Account or secret is wrong."), 401
        try:
            await check_account(self._watches, cluster.name, account)
        except SignInError as error:
            self._throttle.failed(*keys)
            event(
                logger, logging.WARNING, "sign-in refused", account=account.name[:64], peer=keys[1], why=error.args[0]
            )
            return translate(language, error.args[0]), 401
        return "", 200

    async def _logout(self, request: Request) -> Response:
        cookie, session = self._session_of(request)
        await self._form(request, session)
        self._sessions.end(cookie)
        await self._watches.drop_idle()
        response = RedirectResponse(self._pages.url(), 303)
        response.delete_cookie(self._cookie, path=self._cookie_path)
        return response

    async def _set_look(self, request: Request) -> Response:
        _, session = self._session_of(request)
        form = await self._form(request, session)
        look = Appearance.parse(".".join((form.get("language", ""), form.get("zone", ""), form.get("theme", ""))))
        response = RedirectResponse(self._back(form.get("back", ""), None), 303)
        response.set_cookie(_LOOK, look.text(), _YEAR_S, path=self._cookie_path, httponly=True, samesite="lax")
        return response

    # the API

    async def _openapi(self, _request: Request) -> Response:
        return _json(document())

    async def _api_clusters(self, _request: Request) -> Response:
        shown = [ClusterShown(one.name, one.color, one.namesrv) for one in self._config.cluster_list]
        return _json(to_json(shown, list[ClusterShown]))

    async def _api_view(self, request: Request) -> Response:
        path = request.path_params["path"]
        view = _VIEWS.get("" if path == "overview" else path or "-")
        if view is None:
            raise HTTPException(404)

        async def answer(visit: Visit) -> Response:
            value = await view.show(visit, parse_query(view.query, request.query_params))
            return _json(to_json(value, view.value))

        return await self._api(request, answer)

    async def _api_body(self, request: Request) -> Response:
        async def answer(visit: Visit) -> Response:
            if not visit.may_see_bodies:
                return _error(_Refusal(403, "forbidden", "this account may not see bodies"))
            found = await stored_message(visit, parse_query(OneMessageQuery, request.query_params))
            # Whatever the body says, a browser saves it and runs nothing.
            headers = {"content-disposition": f'attachment; filename="{found.offset_msg_id}.bin"'}
            return Response(found.body, media_type="application/octet-stream", headers=headers)

        return await self._api(request, answer)

    async def _api_export(self, request: Request) -> Response:
        async def answer(visit: Visit) -> Response:
            return await export_messages(visit, parse_query(ExportQuery, request.query_params))

        return await self._api(request, answer)

    async def _api_plan(self, request: Request) -> Response:
        change = change_of(request.path_params["kind"])
        if change is None:
            raise HTTPException(404)

        async def answer(visit: Visit) -> Response:
            query = parse_query(change.query, await self._json_body(request), BODY_BYTES_MAX)
            token, plan = await self._changes.show(visit, change, query)
            return _json(to_json(plan_shown(plan, token), PlanShown))

        return await self._api(request, answer)

    async def _api_apply(self, request: Request) -> Response:
        async def answer(visit: Visit) -> Response:
            body = parse_query(ApplyRequest, await self._json_body(request))
            return _json(to_json(made_shown(await self._changes.make(visit, body.token, body.confirm)), MadeShown))

        return await self._api(request, answer)

    async def _api_sql(self, request: Request) -> Response:
        async def answer(visit: Visit) -> Response:
            return _json(to_json(await run_sql(visit, parse_query(SqlQuery, await self._json_body(request))), SqlPage))

        return await self._api(request, answer)

    async def _api_sql_file(self, request: Request) -> Response:
        async def answer(visit: Visit) -> Response:
            form = request.path_params["form"]
            text = result_file(visit, form)
            content = text.encode() if form == "csv" else base64.b64decode(text)
            headers = {"content-disposition": f'attachment; filename="result.{form}"'}
            return Response(content, media_type="application/octet-stream", headers=headers)

        return await self._api(request, answer)

    async def _api_job(self, request: Request) -> Response:
        async def answer(visit: Visit) -> Response:
            job = await change_job(visit, parse_query(JobRequest, await self._json_body(request)))
            return _json(to_json(job, JobShown))

        return await self._api(request, answer)

    async def _api(self, request: Request, answer: Callable[[Visit], Awaitable[Response]]) -> Response:
        """Answers a request of the API: with the session's account, or with one that the request itself has."""
        cluster = self._cluster(request)
        try:
            session = self._sessions.find(request.cookies.get(self._cookie, ""))
            if "authorization" in request.headers:
                session = await self._script_session(request, cluster)
            elif session is not None and request.method == "POST":
                self._check_csrf(session, request.headers.get("x-csrf-token", ""))
            account = session.account(cluster.name) if session is not None else BrokerAccount()
            return await answer(self._visit(request, cluster, session, account))
        except SignInNeededError as error:
            return _error(_Refusal(401, "sign-in", str(error) or "sign in, or send an account with HTTP Basic"))
        except (
            BadQueryError, NotFoundError, NotPermittedError, PlanError, ReadOnlyError, TokenError, ConfirmError,
            MovedError, TooManyError, RucolaError,
        ) as error:  # fmt: skip
            return _error(_refusal(error))

    async def _script_session(self, request: Request, cluster: ClusterAt) -> VisitSession:
        """The session of a script, by the account that it sends.

        Raises:
            SignInNeededError: the account is not accepted.
        """
        scheme, _, word = request.headers["authorization"].partition(" ")
        try:
            name, colon, secret = base64.b64decode(word, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            raise SignInNeededError("HTTP Basic with account and secret") from None
        if scheme.lower() != "basic" or not colon:
            raise SignInNeededError("HTTP Basic with account and secret")
        account = BrokerAccount(name, secret)
        known = self._sessions.find(self._scripts.get((cluster.name, account), ""))
        if known is not None:
            return known
        error, _ = await self._sign_in_error(request, cluster, account)
        if error:
            raise SignInNeededError(error)
        for key in [key for key, cookie in self._scripts.items() if cookie not in self._sessions]:
            del self._scripts[key]
        cookie, _ = self._sessions.begin()
        cookie, session = self._sessions.sign_in(cookie, cluster.name, account, read_only=False)
        self._scripts[cluster.name, account] = cookie
        return session

    async def _json_body(self, request: Request) -> dict[str, str]:
        """The parameters in a body, as texts."""
        # Another site's page can send forms and plain text without asking, but no JSON.
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise BadQueryError("content-type", request.headers.get("content-type", ""), "application/json")
        try:
            found = orjson.loads(await request.body())
        except ValueError:
            raise BadQueryError("body", "", "a JSON object") from None
        if not isinstance(found, dict):
            raise BadQueryError("body", "", "a JSON object")
        return {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in found.items()
            if value is not None
        }

    # visitors

    def _cluster(self, request: Request) -> ClusterAt:
        cluster = self._clusters.get(request.path_params["cluster"])
        if cluster is None:
            raise HTTPException(404)
        return cluster

    def _visit(
        self, request: Request, cluster: ClusterAt, session: VisitSession | None, account: BrokerAccount
    ) -> Visit:
        """The visit of a request.

        Raises:
            SignInNeededError: the visitor has no account, and needs one.
        """
        if not account.name and not self._config.is_open:
            raise SignInNeededError
        watch = self._watches.of(cluster.name, account)
        about = (self._config, self._changes.audited, self._clock.wall_ms, self.desks)
        return Visit(watch, session, _peer(request), *about)

    def _check_signed_in(self, visit: Visit) -> None:
        """Raises ``SignInNeededError`` if the brokers tell a visitor without an account nothing."""
        if not visit.account.name and visit.watch.poller.is_refused:
            raise SignInNeededError

    def _session_of(self, request: Request) -> tuple[str, VisitSession]:
        cookie = request.cookies.get(self._cookie, "")
        session = self._sessions.find(cookie)
        return (cookie, session) if session is not None else self._sessions.begin()

    async def _form(self, request: Request, session: VisitSession | None) -> dict[str, str]:
        """The fields of a form of this session.

        Raises:
            HTTPException: it is no form of this session.
        """
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
            raise HTTPException(415)
        try:
            found = dict(parse_qsl((await request.body()).decode(), keep_blank_values=True, max_num_fields=100))
        except ValueError:
            raise HTTPException(400) from None
        self._check_csrf(session, found.get("csrf", ""))
        return found

    def _check_csrf(self, session: VisitSession | None, given: str) -> None:
        if session is None or not secrets.compare_digest(session.csrf.encode(), given.encode("utf-8", "replace")):
            raise HTTPException(403, "This form is not of your session, or the session has ended. Load the page again.")

    def _set_cookie(self, request: Request, response: Response, cookie: str) -> None:
        """Sets the cookie, unless the browser has it."""
        if request.cookies.get(self._cookie) == cookie:
            return
        is_secure = self._config.public_url.startswith("https:")
        response.set_cookie(
            self._cookie, cookie, path=self._cookie_path, httponly=True, samesite="lax", secure=is_secure
        )

    @property
    def _cookie_path(self) -> str:
        return f"{self._config.base_path}/"

    def _back(self, back: str, cluster: ClusterAt | None) -> str:
        """Where a visitor goes on: an address of the console, nothing else."""
        is_own = back.startswith(f"{self._config.base_path}/") and not back.startswith("//")
        if is_own and "\\" not in back and all(32 < ord(character) < 127 for character in back):
            return back
        return self._pages.url(cluster.name, "") if cluster is not None else self._pages.url()

    def _look(self, request: Request) -> Appearance:
        return Appearance.parse(request.cookies.get(_LOOK, ""), request.headers.get("accept-language", ""))

    def _here(self, request: Request) -> str:
        """The address of this page, as the browser knows it."""
        query = f"?{request.url.query}" if request.url.query else ""
        return f"{self._config.base_path}{request.url.path}{query}"

    def _command(self, visit: Visit, text: str) -> list[str]:
        if not text:
            return []
        name, _, options = text.partition(" ")
        return [f"rucola mqadmin {name} -n {shlex.quote(visit.watch.at.namesrv)} {options}".rstrip()]

    def _api_address(self, request: Request, visit: Visit, path: str, query: Any) -> str:
        given = query_text(query) if fields(query) else ""
        origin = self._config.public_url.rstrip("/") or f"http://{request.headers.get('host', '')}"
        address = f"{origin}/api/{visit.cluster}/{path}" + (f"?{given}" if given else "")
        who = f"-u {shlex.quote(visit.account.name)} " if visit.account.name else ""
        return f"curl -s {who}{shlex.quote(address)}"

    def _said(self, request: Request, error: BadQueryError | PlanError) -> str:
        if isinstance(error, PlanError):
            return translate(self._look(request).language, error.text, **error.values)
        return str(error)

    # errors

    async def _http_error(self, request: Request, error: HTTPException) -> Response:
        texts = {404: "There is no page at this address.", 405: "This address takes another method."}
        text = error.detail if error.status_code == 403 else texts.get(error.status_code, error.detail)
        refusal = _Refusal(error.status_code, "http", text)
        if request.url.path.startswith("/api/"):
            return _error(refusal)
        cookie = request.cookies.get(self._cookie, "")
        return self._error_page(request, cookie, None, refusal)

    async def _server_error(self, request: Request, error: Exception) -> Response:
        event(logger, logging.ERROR, "request failed", error, path=request.url.path, error=repr(error))
        return _error(_Refusal(500, "failed", "The console failed; its log says why."))


def _peer(request: Request) -> str:
    return request.client.host if request.client is not None else ""


def _refusal(error: Exception) -> _Refusal:
    """The answer to an expected error."""
    match error:
        case BadQueryError():
            return _Refusal(400, "bad-parameter", str(error))
        case PlanError():
            return _Refusal(400, "cannot-change", str(error))
        case NotFoundError():
            return _Refusal(404, "not-found", " ".join(str(part) for part in error.args if part))
        case NotPermittedError():
            return _Refusal(403, "not-permitted", str(error))
        case ReadOnlyError():
            return _Refusal(403, "read-only", "This console or this session is read-only.")
        case TokenError():
            return _Refusal(403, "token", "The token is unknown, used, too old, or of another account.")
        case ConfirmError():
            return _Refusal(400, "confirm", f"confirm must be {error.args[0]!r}")
        case MovedError():
            return _Refusal(409, "moved", "Something has moved meanwhile; plan again.")
        case TooManyError():
            return _Refusal(429, "too-many", str(error))
        case _:
            return _Refusal(502, type(error).__name__, str(error))


def _error(refusal: _Refusal) -> Response:
    return _json(to_json(ErrorShown(refusal.error, refusal.text), ErrorShown), refusal.status)


def _json(value: object, status: int = 200) -> Response:
    return Response(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS), status, media_type="application/json")

"""Static files of the web pages, read once: content types, ETags, and a policy that allows no other origin."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bertkit.predict.questions import QUESTIONS
from bertkit.serve.refusals import Refusal
from bertkit.tasks.table import routes as task_routes

CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
}
# Only this origin: no script, style, image or request from elsewhere, and no frames.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
TASK_TOOLS = "/page/task_tools.js"  # generated from the tables of tasks and of questions
# URL path -> folder of the package. The page imports modules of `bertkit look`.
FOLDERS = {"/page": "serve/page", "/docs": "serve/docs_page", "/inside": "inside/look/page"}


@dataclass(frozen=True)
class StaticFile:
    """One file as it is sent."""

    content: bytes
    content_type: str
    etag: str

    def response(self, request: Request) -> Response:
        """The file, or 304; browsers cache it, and revalidate each time."""
        headers = {"etag": self.etag, "cache-control": "no-cache", "content-security-policy": CONTENT_SECURITY_POLICY}
        if self.etag in [tag.strip() for tag in request.headers.get("if-none-match", "").split(",")]:
            return Response(status_code=304, headers=headers)
        return Response(self.content, media_type=self.content_type, headers=headers)


@cache
def static_files() -> Mapping[str, StaticFile]:
    """Every file by its URL path. A name that is not in here does not exist, whatever is on disk."""
    table: dict[str, StaticFile] = {}
    for url, name in FOLDERS.items():
        folder = files("bertkit").joinpath(*name.split("/"))
        if folder.is_dir():
            table |= _read(folder, url)
    return table | {TASK_TOOLS: _file(_task_tools().encode(), ".js")}


def missing_page(method: str, headers: Mapping[bytes, bytes]) -> Response | None:
    """The reply for an address that does not exist, where a browser asks for a page; programs get JSON."""
    if method not in ("GET", "HEAD") or b"text/html" not in headers.get(b"accept", b""):
        return None
    page = static_files()["/page/missing.html"]
    policy = {"content-security-policy": CONTENT_SECURITY_POLICY}
    return Response(page.content, 404, media_type=page.content_type, headers=policy)


def static_routes() -> list[Route]:
    """/ and /docs, and the files that they are made of."""

    async def page(request: Request) -> Response:
        table = static_files()
        return table.get("/page/index.html", table["/docs/index.html"]).response(request)

    async def documentation(request: Request) -> Response:
        return static_files()["/docs/index.html"].response(request)

    def folder(url: str) -> Route:
        async def file(request: Request) -> Response:
            static = static_files().get(f"{url}/{request.path_params['name']}")
            if static is None:
                raise Refusal(404, "there is no such file")
            return static.response(request)

        return Route(f"{url}/{{name:path}}", file)

    return [Route("/", page), Route("/docs", documentation), *map(folder, FOLDERS)]


def _read(folder: Traversable, url: str) -> dict[str, StaticFile]:
    table: dict[str, StaticFile] = {}
    for child in folder.iterdir():
        if child.is_dir():
            table |= _read(child, f"{url}/{child.name}")
            continue
        ending = "." + child.name.rpartition(".")[2]
        if ending in CONTENT_TYPES:
            table[f"{url}/{child.name}"] = _file(child.read_bytes(), ending)
    return table


def _file(content: bytes, ending: str) -> StaticFile:
    return StaticFile(content, CONTENT_TYPES[ending], f'"{hashlib.sha256(content).hexdigest()[:32]}"')


def _task_tools() -> str:
    """A JavaScript module with the tools of all tasks and questions: each is in the module named after its route."""
    names = [*QUESTIONS, *task_routes()]
    lines = [f'import {{ tool as tool{number} }} from "./{name}.js";' for number, name in enumerate(names)]
    return "\n".join([*lines, f"export const TASK_TOOLS = [{', '.join(f'tool{n}' for n in range(len(names)))}];", ""])

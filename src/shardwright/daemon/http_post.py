"""One notification by an HTTP POST: ``python -m shardwright.daemon.http_post``, which the daemon starts for
each one (notifier.py). Standard input is {"post", "headers_file", "type", "body"}.

Addresses and headers may be secret: none is an argument, which others can see, and no error has one. An error
is one line on standard error, in words of our own where a library's would name what it was given.
"""

from __future__ import annotations

import os
import re
import sys
from http.client import responses
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from shardwright.model.errors import ConfigError
from shardwright.model.json_text import parse_json
from shardwright.wire.key_files import read_secret_text

NICE = 5  # behind the daemon's threads
_HEADER = r"([A-Za-z0-9!#$%&'*+.^_`|~-]+):[ \t]*([!-~][ -~]*)"


def read_headers(path: Path) -> dict[str, str]:
    """Returns the headers in a file. Raises ``ConfigError``, which never has its content."""
    headers = {}
    for number, line in enumerate(read_secret_text(path).splitlines(), 1):
        if line.strip():
            if (found := re.fullmatch(_HEADER, line.strip())) is None:
                raise ConfigError(f"{path}:{number}: no header", expected="NAME: VALUE")
            headers[found[1]] = found[2]
    return headers


class _NoRedirects(HTTPRedirectHandler):
    """Takes a redirect for an error: the request would become a GET, and its headers another server's."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def main() -> None:
    os.nice(NICE)
    try:
        told = parse_json(sys.stdin.read())
        own = read_headers(Path(told["headers_file"])) if told["headers_file"] else {}
        headers = {"Content-Type": told["type"], "User-Agent": "shardwright", **own}
        request = Request(told["post"], told["body"].encode(errors="replace"), headers)  # noqa: S310  (http or https)
        build_opener(_NoRedirects).open(request).close()
    except ConfigError as error:
        sys.exit(str(error))
    except HTTPError as error:
        sys.exit(f"HTTP {error.code} {responses.get(error.code, '')}")
    except Exception as error:  # noqa: BLE001  (a traceback could show what is secret)
        why = error.reason if isinstance(error, URLError) else error
        sys.exit((isinstance(why, OSError) and why.strerror) or type(why).__name__)


if __name__ == "__main__":
    main()

"""OPENs whose answer is lost with the connection: the client asks again, and gets what the daemon has made
for it."""

from __future__ import annotations

import secrets
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import shardwright as sw
from shardwright import errors
from shardwright.wire.controls import Welcome
from shardwright.wire.messages import Kind, decode_control

if TYPE_CHECKING:
    from concurrent.futures import Future

WAYS = ["shm", "message"]


@contextmanager
def asked(call, *arguments, **options) -> Future:
    """A call in a thread of its own."""
    with ThreadPoolExecutor(1) as threads:
        yield threads.submit(call, *arguments, **options)


@pytest.mark.parametrize("transport", WAYS)
def test_a_client_gets_the_acquisition_that_it_was_not_told_of(
    start, double, spec_of, frames_of, proxy, transport
):
    daemon = start(doubled=double)
    link = proxy(daemon.tcp)
    with sw.connect(link.endpoint, transport=transport) as connection:
        link.mute()
        with asked(connection.acquire, "a", spec_of()) as answer:
            daemon.event("acquisition_opened")
            link.cut()
            link.mend()
            stream = answer.result()
        stream.append(frames_of(1)[0])
        stream.close()
        assert stream.receipt.frames_stored == 1
        with pytest.raises(errors.OutputExistsError):
            connection.acquire("a", spec_of())
    assert daemon.count("acquisition_opened") == 1
    assert daemon.acquisitions[0].client_epoch == 1


def test_who_reopens_counts_once(start, double, spec_of, frames_of, wait, proxy):
    daemon = start(doubled=double)
    link, dead = proxy(daemon.tcp), proxy(daemon.tcp)
    with sw.connect(dead.endpoint) as first, sw.connect(link.endpoint) as connection:
        stream = first.acquire("a", spec_of())
        stream.append(frames_of(1)[0])
        wait(lambda: stream.watermark.stored == 1)
        dead.cut()
        daemon.event("acquisition_detached")
        link.mute()
        with asked(connection.acquire, "a", reopen=True) as answer:
            daemon.event("acquisition_reopened")
            link.cut()
            link.mend()
            successor = answer.result()
        successor.append(frames_of(1)[0])
        successor.close()
        dead.mend()
        with pytest.raises(errors.FencedError):
            stream.close()
    assert daemon.acquisitions[0].client_epoch == 2
    assert daemon.acquisitions[0].submitted == [0, 1]


def test_a_daemon_that_was_replaced_knows_nothing_and_is_not_asked(start, double, spec_of, frames_of, proxy):
    """It finds the store of the one before: no client is told that its own output exists."""
    first = start(doubled=double)
    link = proxy(first.tcp)
    with sw.connect(link.endpoint) as connection:
        link.mute()
        with asked(connection.acquire, "a", spec_of()) as answer:
            first.event("acquisition_opened")
            link.cut()
            first.kill()
            second = start(doubled=double, root=first.root)
            link.mend(second.tcp)
            with pytest.raises(errors.SessionLostError, match=r"was replaced.*reopen=True"):
                answer.result()
        with connection.acquire("a", reopen=True) as stream:
            stream.append(frames_of(1)[0])
    assert stream.receipt.frames_stored == 1


def test_a_daemon_that_knows_no_openings_is_not_asked_again(start, double, spec_of, proxy, monkeypatch):
    """One of an earlier release."""
    to_body = Welcome.to_body
    monkeypatch.setattr(Welcome, "to_body", lambda self: to_body(replace(self, instance=None)))
    daemon = start(doubled=double)
    link = proxy(daemon.tcp)
    with sw.connect(link.endpoint) as connection:
        link.mute()
        with asked(connection.acquire, "a", spec_of()) as answer:
            daemon.event("acquisition_opened")
            link.cut()
            link.mend()
            with pytest.raises(errors.SessionLostError):
                answer.result()


def test_another_opening_of_that_name_is_refused(start, double, raw, spec_of):
    daemon = start(doubled=double)
    client, other = raw(daemon.ipc), raw(daemon.ipc)
    opening = secrets.token_hex(16)
    client.open("a", spec_of(), opening=opening)
    for token in (secrets.token_hex(16), None):
        other.ask_to_open("a", spec_of(), opening=token)
        assert other.receive_error()[1]["code"] == "output_exists"
    other.ask_to_open("a", spec_of(), opening=opening)  # before its old connection is missed
    header, parts = other.receive()
    assert (header.kind, decode_control(parts[0])["next_sequence"]) == (Kind.OPENED, 0)
    other.ask_to_open("a", spec_of(), opening="none")
    assert other.receive_error(until=True)[1]["code"] == "protocol"


def test_an_opening_that_comes_again_waits_for_what_is_being_made_for_it(
    start, double, raw, spec_of, monkeypatch
):
    begun, may_go_on = threading.Event(), threading.Event()
    make = double.__init__

    def makes_slowly(*arguments, **options):
        begun.set()
        assert may_go_on.wait(60)
        make(*arguments, **options)

    monkeypatch.setattr(double, "__init__", makes_slowly)
    daemon = start(doubled=double)
    client, other = raw(daemon.ipc), raw(daemon.ipc)
    opening = secrets.token_hex(16)
    client.ask_to_open("a", spec_of(), opening=opening)
    assert begun.wait(60)
    other.ask_to_open("a", spec_of(), opening=opening)
    other.ask_to_open("a", spec_of(), opening=None)  # which the daemon looks at later
    assert other.receive_error()[1]["code"] == "output_exists"
    may_go_on.set()
    header, parts = other.receive()
    assert (header.kind, decode_control(parts[0])["next_sequence"]) == (Kind.OPENED, 0)
    assert len(daemon.acquisitions) == 1

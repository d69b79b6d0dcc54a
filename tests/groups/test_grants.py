"""The grants of a membership: work begins once its start is stored, and each grant ends alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

import pytest

import headrace
from headrace.core.errors import DiskFull, Fenced, HeadraceError, UnknownStream
from headrace.core.model import Slice, StreamInfo
from headrace.core.ports import Begin, Commit, End, Grant, GrantNews, Lease, Lost
from headrace.groups.grants import RETRY_S, GrantKeeper, Prepared
from headrace.hub.hub import Hub
from headrace.streams.start import Start, StartPolicy

HANDLER_S = 5.0


class Scripted:
    """A membership that says what it is told to say, and notes what is asked of it."""

    def __init__(self) -> None:
        self.lease = Lease(inf)
        self.news: list[GrantNews] = []
        self.released: list[Grant] = []
        self.commits: list[Commit] = []
        self.refusals: list[HeadraceError | None] = []
        self.has_left = False

    def join(self) -> None:
        pass

    def changes(self) -> list[GrantNews]:
        news, self.news = self.news, []
        return news

    def release(self, grants: Sequence[Grant]) -> None:
        self.released += grants

    def commit(self, commits: Sequence[Commit]) -> list[HeadraceError | None]:
        self.commits += commits
        return [self.refusals.pop(0) if self.refusals else None for _ in commits]

    def move(self, grant: Grant, to: int) -> None:
        raise NotImplementedError

    def fence(self, grant: Grant) -> None:
        raise NotImplementedError

    def stop(self, grant: Grant) -> None:
        raise NotImplementedError

    def finished(self, grant: Grant) -> None:
        raise NotImplementedError

    def leave(self) -> None:
        self.has_left = True
        raise headrace.Unreachable("no answer")


class Listener:
    """Takes note of what happens to grants."""

    def __init__(self, membership: Scripted) -> None:
        self._membership = membership
        self.happened: list[tuple[object, ...]] = []
        self.attempts: bytes | None = None
        self.is_ready = True

    def prepare(self, begin: Begin, at: int) -> Prepared[str] | None:
        return Prepared(self.attempts, f"from {at}") if self.is_ready else None

    def store(self, commits: Sequence[Commit]) -> list[HeadraceError | None]:
        return self._membership.commit(commits)

    def begin(self, grant: Grant, at: int, facts: str) -> None:
        self.happened.append(("begin", grant.token, at, facts))

    def end(self, grant: Grant, until_s: float) -> None:
        self.happened.append(("end", grant.token, until_s))

    def lose(self, grant: Grant, until_s: float) -> None:
        self.happened.append(("lose", grant.token, until_s))


class Scene:
    """A keeper of grants of one shard, with ten records, on a clock that stands still."""

    def __init__(self, hub: Hub, start: Start = "latest") -> None:
        stream = hub.create_stream("orders", shards=1)
        stream.append_many([(b"x", None)] * 10)
        self.hub = hub
        self.info: StreamInfo = stream.info
        self.now_s = 100.0
        self.membership = Scripted()
        self.listener = Listener(self.membership)
        self.keeper: GrantKeeper[str] = GrantKeeper(
            self.membership,
            StartPolicy(hub.log, start),
            self.listener,
            owner="a test",
            handler_s_max=HANDLER_S,
            clock=lambda: self.now_s,
        )

    def grant(self, token: bytes = b"1") -> Grant:
        return Grant("billing", self.info, 0, token)

    def hears(self, *news: GrantNews) -> bool:
        self.membership.news = list(news)
        self.keeper.hear()
        return self.keeper.begin_pending()


@pytest.fixture
def hub() -> Iterator[Hub]:
    with headrace.open("memory:") as hub:
        yield hub


@pytest.fixture
def scene(hub: Hub) -> Scene:
    return Scene(hub)


def test_a_start_that_was_chosen_is_stored_before_work_begins(scene: Scene) -> None:
    assert scene.hears(Begin(scene.grant(), None))
    assert scene.membership.commits == [
        Commit(grant=scene.grant(), done=Slice("orders", 0, 10, 10))
    ]
    assert scene.listener.happened == [("begin", b"1", 10, "from 10")]
    assert not scene.keeper.is_beginning


@pytest.mark.parametrize(("start", "checkpoint"), [("earliest", None), ("latest", 0)])
def test_a_start_that_others_know_is_not_stored(
    hub: Hub, start: Start, checkpoint: int | None
) -> None:
    scene = Scene(hub, start)
    assert scene.hears(Begin(scene.grant(), checkpoint))
    assert scene.membership.commits == []
    assert scene.listener.happened == [("begin", b"1", 0, "from 0")]


def test_attempts_are_stored_with_every_start(scene: Scene) -> None:
    scene.listener.attempts = b"note"
    scene.hears(Begin(scene.grant(), 4))
    assert scene.membership.commits == [
        Commit(grant=scene.grant(), done=Slice("orders", 0, 4, 4), attempts=b"note")
    ]


def test_a_start_that_cannot_be_stored_is_tried_again_after_a_while(scene: Scene) -> None:
    scene.membership.refusals = [DiskFull("no space left")]
    assert not scene.hears(Begin(scene.grant(), None))
    assert scene.keeper.is_beginning
    assert not scene.hears(), "not at once"
    assert len(scene.membership.commits) == 1
    scene.now_s += RETRY_S
    assert scene.hears()
    assert [what[0] for what in scene.listener.happened] == ["begin"]


def test_a_grant_that_ends_before_work_begins_is_released(scene: Scene) -> None:
    scene.membership.refusals = [DiskFull("no space left")]
    scene.hears(Begin(scene.grant(), None))
    scene.hears(End(scene.grant()))
    assert scene.membership.released == [scene.grant()]
    assert scene.listener.happened == []
    assert not scene.keeper.is_beginning


def test_a_grant_that_is_lost_before_work_begins_is_not_released(scene: Scene) -> None:
    scene.hears(Begin(scene.grant(), None), Lost(scene.grant()))
    assert scene.membership.released == []
    assert scene.listener.happened == [("lose", b"1", 100.0 + HANDLER_S)]


def test_the_end_of_an_old_grant_leaves_the_new_one_alone(scene: Scene) -> None:
    old, new = scene.grant(b"1"), scene.grant(b"2")
    scene.hears(Begin(old, None), Lost(old), Begin(new, 2), End(old))
    assert scene.membership.released == []
    assert [what[:2] for what in scene.listener.happened] == [
        ("lose", b"1"), ("end", b"1"), ("begin", b"2"),
    ]  # fmt: skip


def test_a_grant_that_ends_while_work_goes_on_is_the_listeners(scene: Scene) -> None:
    scene.hears(Begin(scene.grant(), 4))
    scene.hears(End(scene.grant()))
    assert scene.listener.happened[1:] == [("end", b"1", 100.0 + HANDLER_S)]
    assert scene.membership.released == []
    last = Commit(grant=scene.grant(), done=Slice("orders", 0, 4, 5))
    scene.keeper.let_go([scene.grant()], [last])
    assert scene.membership.commits == [last]
    assert scene.membership.released == [scene.grant()]


@pytest.mark.parametrize("why", ["fenced", "stream deleted", "not ready", "gone before"])
def test_a_grant_under_which_work_never_begins_is_released_when_it_ends(
    scene: Scene, why: str
) -> None:
    refusals: dict[str, HeadraceError] = {
        "fenced": Fenced("billing", "orders", 0),
        "stream deleted": UnknownStream("orders"),
    }
    scene.membership.refusals = [refusals.get(why)]
    scene.listener.is_ready = why != "not ready"
    if why == "gone before":
        scene.hub.delete_stream("orders")
    assert not scene.hears(Begin(scene.grant(), None))
    assert not scene.keeper.is_beginning
    assert scene.membership.released == []
    scene.hears(End(scene.grant()))
    assert scene.membership.released == [scene.grant()]
    assert scene.listener.happened == []
    scene.hears(End(scene.grant()))
    assert scene.membership.released == [scene.grant()], "once"


def test_an_error_that_no_time_heals_is_raised(scene: Scene) -> None:
    scene.membership.refusals = [headrace.BadSetting("never")]
    with pytest.raises(headrace.BadSetting, match="never"):
        scene.hears(Begin(scene.grant(), None))


def test_a_member_about_to_leave_begins_nothing_and_frees_all_by_leaving(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.hears(Begin(scene.grant(b"1"), 4))
    scene.keeper.prepare_to_leave()
    assert not scene.hears(End(scene.grant(b"1")), Begin(scene.grant(b"2"), 4))
    assert not scene.keeper.is_beginning
    last = Commit(grant=scene.grant(b"1"), done=Slice("orders", 0, 4, 5))
    scene.keeper.let_go([scene.grant(b"1")], [last])
    assert scene.membership.commits == [last], "what is done is stored"
    assert scene.membership.released == []
    scene.keeper.leave()
    assert scene.membership.has_left
    assert "a test has left without saying so: no answer" in caplog.text

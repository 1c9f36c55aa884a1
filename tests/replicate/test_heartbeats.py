"""The heartbeats' thread: promises go out and come back by themselves, whatever the network and unidentified senders
send.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from delaynode.clock import boot_ms, wall_ms
from delaynode.replication.heartbeat_guard import HeartbeatGuard, HeartbeatKey
from delaynode.replication.protocol import Heartbeat, HeartbeatReply, encode_heartbeat
from delaynode.replication.replica_lease import ReplicaLeases
from delaynode.replication.transport.heartbeats import HeartbeatThread
from delaynode.replication.transport.links import is_same_ip

LOCAL = "127.0.0.1"


class Fake:
    """Grants everything, and writes down what it was called for."""

    def __init__(self, node: str, asks: tuple[str, ...] = ()) -> None:
        self.node = node
        self.asks = asks
        self.sent = 0
        self.answered: list[Heartbeat] = []
        self.replies: list[HeartbeatReply] = []
        self.calls: list[str] = []
        self.before_heartbeats: Callable[[], None] = lambda: None
        self.before_check: Callable[[], None] = lambda: None
        self.shards: tuple[tuple[int, int], ...] = ((7, 1),)

    def heartbeats(self) -> list[tuple[str, Heartbeat]]:
        self.calls.append("heartbeats")
        self.before_heartbeats()
        self.sent += 1
        return [(node, Heartbeat(self.node, 1, self.sent, 0, self.shards)) for node in self.asks]

    def answer(self, heartbeat: Heartbeat) -> HeartbeatReply | None:
        self.answered.append(heartbeat)
        rows = tuple((uid, epoch, True) for uid, epoch in heartbeat.shards)
        return HeartbeatReply(self.node, heartbeat.incarnation, heartbeat.heartbeat_id, 0, 3_000, rows)

    def on_reply(self, reply: HeartbeatReply) -> None:
        self.calls.append("on_reply")
        self.replies.append(reply)

    def check_silence(self) -> None:
        self.calls.append("check_silence")
        self.before_check()


def unsealed(node: str) -> HeartbeatGuard:
    return HeartbeatGuard(node, "", boot_ms, 1_000)


class Ground:
    """Threads that know each other's addresses, and a log."""

    def __init__(self) -> None:
        self.addresses: dict[str, tuple[str, int]] = {f"n{number}": (LOCAL, 9) for number in range(10)}
        self.threads: list[HeartbeatThread] = []
        self.logged: list[tuple[str, dict[str, object]]] = []

    def add(
        self,
        replica_leases: Fake | ReplicaLeases,
        interval_ms: int = 10,
        drop: Callable[[], bool] | None = None,
        guard: HeartbeatGuard | None = None,
    ) -> int:
        def log(event: str, **fields: object) -> None:
            self.logged.append((event, fields))

        thread = HeartbeatThread(
            replica_leases, guard or unsealed(replica_leases.node), self.addresses.get, log, interval_ms
        )
        port = thread.bind(LOCAL, 0)
        if drop is not None:
            thread._socket = Lossy(thread._socket, drop)  # type: ignore[arg-type, assignment]
        self.addresses[replica_leases.node] = (LOCAL, port)
        self.threads.append(thread)
        return port

    def start(self) -> None:
        for thread in self.threads:
            thread.start()

    def events(self, name: str) -> list[dict[str, object]]:
        return [fields for event, fields in self.logged if event == name]


class Lossy:
    """A socket that loses what it is told to."""

    def __init__(self, sock: socket.socket, drop: Callable[[], bool]) -> None:
        self._sock, self._drop = sock, drop

    def sendto(self, data: bytes, to: tuple[str, int]) -> int:
        return len(data) if self._drop() else self._sock.sendto(data, to)

    def __getattr__(self, name: str) -> object:
        return getattr(self._sock, name)


@pytest.fixture
def ground() -> Iterator[Ground]:
    made = Ground()
    yield made
    for thread in made.threads:
        thread.stop()
    assert not any(thread.name == "heartbeats" for thread in threading.enumerate())


def until(what: str, true: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.002)


def void(result: object) -> None: ...


def test_heartbeats_go_to_whom_they_are_for_and_the_replies_come_back(ground: Ground) -> None:
    master, slave, other = Fake("n0", ("n1",)), Fake("n1"), Fake("n2")
    for fake in (master, slave, other):
        ground.add(fake)
    ground.start()
    until("several rounds are done", lambda: len(master.replies) >= 5)
    assert slave.answered[0] == Heartbeat("n0", 1, 1, 0, ((7, 1),))
    assert master.replies[0] == HeartbeatReply("n1", 1, 1, 0, 3_000, ((7, 1, True),))
    assert other.answered == []
    assert ground.logged == []


def test_a_nudge_sends_at_once(ground: Ground) -> None:
    master, slave = Fake("n0", ("n1",)), Fake("n1")
    ground.add(master, interval_ms=60_000)
    ground.add(slave)
    ground.start()
    for count in range(1, 6):
        until("the round has come", lambda: len(master.replies) == count, 5)  # noqa: B023
        ground.threads[0].nudge()
    until("the last has come", lambda: len(master.replies) == 6, 5)


def test_all_that_has_come_is_taken_before_silence_is_judged(ground: Ground) -> None:
    master = Fake("n0")
    port = ground.add(master, interval_ms=20)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        # the thread did not run for a while (here: before it was started), and replies lie in the socket
        for number in range(100):
            peer.sendto(encode_heartbeat(HeartbeatReply("n1", 1, number, 0, 3_000, ())), (LOCAL, port))
        ground.start()
        until("it has looked", lambda: "check_silence" in master.calls)
    assert master.calls[: master.calls.index("check_silence")].count("on_reply") == 100


def test_what_comes_while_a_round_is_sent_is_taken_before_silence_is_judged(ground: Ground) -> None:
    master = Fake("n0")
    port = ground.add(master)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        reply = encode_heartbeat(HeartbeatReply("n1", 1, 1, 0, 3_000, ()))
        master.before_heartbeats = lambda: void(peer.sendto(reply, (LOCAL, port)))
        ground.start()
        until("it has looked", lambda: "check_silence" in master.calls)
        assert master.calls[:3] == ["heartbeats", "on_reply", "check_silence"]
        ground.threads[0].stop()


def test_silence_is_judged_after_every_round_also_when_nothing_is_asked(ground: Ground) -> None:
    idle = Fake("n0")
    ground.add(idle)
    ground.start()
    until("it has looked", lambda: idle.calls.count("check_silence") >= 5)
    assert idle.calls[:4] == ["heartbeats", "check_silence", "heartbeats", "check_silence"]


def test_real_leases_stay_alive_when_a_third_of_the_datagrams_is_lost_and_end_when_all_are(ground: Ground) -> None:
    rng, lost = random.Random(3), [0.33]

    def drop() -> bool:
        return rng.random() < lost[0]

    master = ReplicaLeases("n0", 1, lease_ms=1_000, boot_ms=boot_ms, wall_ms=wall_ms)
    slave = ReplicaLeases("n1", 2, lease_ms=1_000, boot_ms=boot_ms, wall_ms=wall_ms)
    slave.raise_min_epoch(7, 1)
    heard: list[tuple[str, bool]] = []
    master.on_silent = lambda node, silent: heard.append((node, silent))
    ground.add(master, interval_ms=20, drop=drop)
    ground.add(slave, interval_ms=20, drop=drop)
    master.lead(7, 1, ["n1"])
    ground.start()
    until("the first promise is there", lambda: master.live(7, ["n1"]))
    gaps, end = 0, time.monotonic() + 1.0
    while time.monotonic() < end:
        gaps += not master.live(7, ["n1"])
        time.sleep(0.005)
    assert (gaps, heard) == (0, [])
    lost[0] = 1.0
    until("the lease has run out", lambda: not master.live(7, ["n1"]))
    until("the peer is silent", lambda: heard == [("n1", True)])
    lost[0] = 0.0
    until("it speaks again", lambda: heard == [("n1", True), ("n1", False)] and master.live(7, ["n1"]))


def test_garbage_is_logged_once_and_stops_nothing(ground: Ground) -> None:
    rng = random.Random(1)
    master, slave = Fake("n0", ("n1",)), Fake("n1")
    ground.add(master)
    port = ground.add(slave)
    ground.start()
    until("it works", lambda: bool(master.replies))
    good = encode_heartbeat(Heartbeat("n9", 1, 1, 0, ((1, 1), (2, 2))))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for _ in range(500):
            bad = bytearray(good)
            bad[rng.randrange(len(bad))] ^= rng.randrange(1, 256)
            for data in (bad, rng.randbytes(rng.randrange(60)), good[: rng.randrange(len(good))], b""):
                stranger.sendto(data, (LOCAL, port))
    seen = len(master.replies)
    until("it still works", lambda: len(master.replies) >= seen + 3)
    assert [fields["peer"] for fields in ground.events("peer-bad-input")] == [LOCAL]
    assert ground.events("heartbeat-failed") == []


def test_a_flood_does_not_stop_the_heartbeats(ground: Ground) -> None:
    master, slave = Fake("n0", ("n1",)), Fake("n1")
    ground.add(master)
    ground.add(slave)
    flood = encode_heartbeat(HeartbeatReply("n2", 1, 0, 0, 3_000, ()))

    class Flooded(Lossy):
        def recvfrom(self, size: int) -> tuple[bytes, tuple[str, int]]:
            return flood, (LOCAL, 9)  # there is always one more

    thread = ground.threads[0]
    thread._socket = Flooded(thread._socket, lambda: False)  # type: ignore[arg-type, assignment]
    ground.start()
    until("the heartbeats go on", lambda: len(slave.answered) >= 5)


@pytest.mark.parametrize(
    ("address", "reason"),
    [(None, "its address is not known"), (("localhost", 9), "not an IP address"), (("::1", 9), "[::1]:9, ")],
    ids=["unknown", "a name", "another family"],
)
def test_a_peer_that_cannot_be_sent_to_is_logged_once_and_others_are_served(
    ground: Ground, address: tuple[str, int] | None, reason: str
) -> None:
    master, slave = Fake("n0", ("bad", "n1")), Fake("n1")
    ground.add(master)
    ground.add(slave)
    if address is not None:
        ground.addresses["bad"] = address
    ground.start()
    until("several rounds are done", lambda: len(master.replies) >= 5)
    (logged,) = ground.events("heartbeat-not-sent")
    assert (logged["peer"], reason in str(logged["reason"])) == ("bad", True)


def test_a_heartbeat_too_long_for_a_datagram_is_logged_and_stops_nothing(ground: Ground) -> None:
    master, slave = Fake("n0", ("n1",)), Fake("n1")
    ground.add(master)
    ground.add(slave)
    master.shards = tuple((uid, 1) for uid in range(6_000))  # 72,000 bytes; a datagram has 65,507 at most
    ground.start()
    until("it is logged", lambda: bool(ground.events("heartbeat-not-sent")))
    master.shards = ((7, 1),)
    until("shorter ones arrive", lambda: bool(master.replies))
    assert len(ground.logged) == 1


def test_a_thousand_shards_fit_one_heartbeat(ground: Ground) -> None:
    master, slave = Fake("n0", ("n1",)), Fake("n1")
    ground.add(master)
    ground.add(slave)
    master.shards = tuple((uid, 1) for uid in range(1_000))
    ground.start()
    until("it is answered", lambda: bool(master.replies))
    assert len(master.replies[0].shards) == 1_000


def test_leases_that_raise_are_logged_and_asked_again(ground: Ground) -> None:
    master, slave = Fake("n0", ("n1",)), Fake("n1")
    ground.add(master)
    ground.add(slave)
    broken = [True]

    def fail() -> None:
        if broken[0]:
            raise ZeroDivisionError("check_silence")

    master.before_check = fail
    ground.start()
    until("rounds go on", lambda: len(master.replies) >= 5)
    (logged,) = ground.events("heartbeat-failed")
    assert "ZeroDivisionError: check_silence" in str(logged["reason"])
    broken[0] = False
    looks = master.calls.count("check_silence")
    until("and are judged", lambda: master.calls.count("check_silence") > looks)


def test_it_shares_the_port_number_with_the_tcp_listener_and_frees_it(ground: Ground) -> None:
    with socket.create_server((LOCAL, 0)) as listener:
        port = listener.getsockname()[1]
        thread = HeartbeatThread(Fake("n0"), unsealed("n0"), lambda node: None, lambda event, **fields: None)
        assert thread.bind(LOCAL, port) == port
        with pytest.raises(OSError, match="in use"):
            HeartbeatThread(Fake("n0"), unsealed("n0"), lambda node: None, lambda event, **fields: None).bind(
                LOCAL, port
            )
        thread.start()
        thread.stop()
        thread.nudge()  # late, and harmless
    again = HeartbeatThread(Fake("n0"), unsealed("n0"), lambda node: None, lambda event, **fields: None)
    assert again.bind(LOCAL, port) == port
    again.stop()


@pytest.mark.parametrize("node", ["n0", "nobody"])
def test_a_datagram_from_an_address_that_no_lease_names_counts_for_nothing(ground: Ground, node: str) -> None:
    slave = Fake("n1")
    port = ground.add(slave)
    ground.addresses["n0"] = ("127.0.0.7", 9)
    ground.start()
    forged = Heartbeat(node, 1, 1, 0, ((7, 2**32 - 1),))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(encode_heartbeat(forged), (LOCAL, port))
        stranger.sendto(encode_heartbeat(HeartbeatReply(node, 1, 1, 0, 3_000, ((7, 2**32 - 1, True),))), (LOCAL, port))
        until("it is logged", lambda: bool(ground.events("peer-stranger")))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as named:
        named.bind(("127.0.0.7", 0))
        named.sendto(encode_heartbeat(Heartbeat("n0", 1, 2, 0, ((7, 1),))), (LOCAL, port))
        until("the named one is answered", lambda: bool(slave.answered))
    assert [heartbeat.heartbeat_id for heartbeat in slave.answered] == [2]
    assert slave.replies == []


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("fd00::1", "fd00:0::1", True),
        ("fe80::1", "fe80::1%eth0", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("n0.svc", "n0.svc", False),
    ],
)
def test_one_address_may_be_written_in_several_ways(one: str, other: str, same: bool) -> None:
    assert is_same_ip(one, other) is same


def test_sealed_heartbeats_get_their_leases_at_once_and_others_nothing(ground: Ground) -> None:
    """At once: nobody waits for the interval, though the first heartbeat by a key is only told what to echo."""
    master, slave = Fake("n0", ("n1",)), Fake("n1")
    process = {"n0": f"{1:016x}", "n1": f"{2:016x}"}
    guards = {
        node: HeartbeatGuard(node, process[node], boot_ms, 60_000, lambda _: True, required=True) for node in process
    }
    ground.add(master, interval_ms=60_000, guard=guards["n0"])
    port = ground.add(slave, interval_ms=60_000, guard=guards["n1"])
    guards["n0"].on_key = ground.threads[0].nudge
    ground.start()
    until("nothing can be sent yet", lambda: bool(ground.events("heartbeat-not-sent")))
    key = HeartbeatKey.new()
    guards["n1"].answer_by("c", "n0", process["n0"], key)
    guards["n0"].ask_by("c", "n1", process["n1"], key)
    until("leases are granted", lambda: bool(master.replies) and master.replies[-1].shards == ((7, 1, True),))
    answered = len(slave.answered)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as forger:
        forger.sendto(encode_heartbeat(Heartbeat("n0", 1, 99, 0, ((7, 1),))), (LOCAL, port))
        until("it is refused", lambda: bool(ground.events("heartbeat-unauthenticated")))
    assert len(slave.answered) == answered

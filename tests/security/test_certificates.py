"""The certificates on disk: which are good, when they are swapped, and what is said of bad ones."""

import re
import threading
import time
from datetime import timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from delayapi.certificates import CertificateStore, load_roots

from tests.security.authority import DAY, Authority, Mount, write

NAME = "shared.messages.svc"
URI = "spiffe://delaycluster/ns/messages/cluster/shared/role/node"


@pytest.fixture(scope="module")
def ca():
    return Authority()


@pytest.fixture(scope="module")
def good(ca):
    return ca.issue(URI, NAME)


class Clock:
    def __init__(self):
        self.ahead = timedelta()

    def __call__(self):
        return time.time() + self.ahead.total_seconds()


def test_what_is_good_is_prepared(tmp_path, ca, good):
    store = CertificateStore(write(tmp_path, good, ca.pem))
    found = store.current
    assert (found.chain_pem, found.roots_pem, found.names) == (good.chain_pem, ca.pem, (URI, f"dns:{NAME}"))
    assert found.not_after_ms == int(good.certificate.not_valid_after_utc.timestamp() * 1000)
    assert store.problem is None
    assert good.key_pem.decode().splitlines()[1] not in repr(found)


def test_intermediates_lead_to_the_root(tmp_path, ca):
    issued = Authority("intermediate", ca).issue(NAME)
    assert CertificateStore(write(tmp_path, issued, ca.pem)).current.chain_pem.count(b"BEGIN") == 2


def test_a_swapped_secret_is_one_new_value(tmp_path, ca, good):
    mount = Mount(tmp_path, good, ca.pem)
    store, told = CertificateStore(tmp_path), []
    store.subscribe(told.append)
    store.look()
    assert [one.chain_pem for one in told] == [good.chain_pem]
    newer, old_and_new = ca.issue(NAME), ca.pem + Authority("next").pem
    mount.swap(newer, old_and_new)
    store.look()
    assert [one.chain_pem for one in told] == [good.chain_pem, newer.chain_pem]
    assert store.current is told[1]
    assert store.current.roots_pem == old_and_new


def test_the_thread_finds_files_that_are_replaced(tmp_path, ca, good):
    store, told = CertificateStore(write(tmp_path, good, ca.pem)), threading.Event()
    newer = ca.issue(NAME)
    store.subscribe(lambda found: told.set() if found.chain_pem == newer.chain_pem else None)
    store.start(0.01)
    try:
        write(tmp_path, newer, None)
        assert told.wait(10)
    finally:
        store.close()


def _damaged(ca, good):
    other = Authority("other")
    rsa_key = ca.issue(NAME, key=rsa.generate_private_key(65537, 2048))
    encrypted = good.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    two = good.chain_pem + ca.pem
    return {
        "another key": ({"tls.key": ca.issue(NAME).key_pem}, "tls.key is not the key of the first certificate"),
        "expired": (ca.issue(NAME, begins=-2 * DAY, ends=-DAY), r"tls.crt: CN=leaf has expired at 20\d\d-\d\d-\d\d "),
        "not yet valid": (ca.issue(NAME, begins=DAY), r"tls.crt: CN=leaf is not valid before 20\d\d-"),
        "cut": ({"tls.crt": good.chain_pem[:300]}, "tls.crt is empty, cut off or not certificates in PEM"),
        "second cut": ({"tls.crt": two[:-200]}, "tls.crt "),
        "no PEM": ({"tls.crt": b"\x30\x82\x01"}, "tls.crt is empty, cut off or not certificates in PEM"),
        "empty": ({"tls.crt": b""}, "tls.crt is empty, cut off or not certificates in PEM"),
        "key cut": ({"tls.key": good.key_pem[:100]}, "tls.key is empty, cut off or not a private key in PEM"),
        "encrypted": ({"tls.key": encrypted}, "tls.key is encrypted"),
        "RSA": (rsa_key, "tls.key is RSAPrivateKey; it must be ECDSA on P-256"),
        "P-384": (ca.issue(NAME, key=ec.generate_private_key(ec.SECP384R1())), "tls.key is secp384r1; it"),
        "Ed25519": ({"tls.key": _ed25519_pem()}, "tls.key is Ed25519PrivateKey; it"),
        "another CA": ({"ca.crt": other.pem}, "tls.crt: ca.crt does not verify it"),
        "issuer is no CA": (_issued_by_leaf(ca), r"tls.crt: ca.crt does not verify it.*basicConstraints"),
        "no CA in it": ({"ca.crt": b"none"}, "ca.crt is empty, cut off or not certificates in PEM"),
        "missing": ({"tls.key": None}, "tls.key can't be read: No such file"),
        "a directory": ({"tls.crt": ...}, "tls.crt can't be read: Is a directory"),
    }


def _ed25519_pem():
    return ed25519.Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _issued_by_leaf(ca):
    middle = ca.issue("middle")
    below = Authority("leaf", ca)
    below.certificate, below.key = middle.certificate, middle.key
    return below.issue(NAME)


DAMAGED = [
    "another key", "expired", "not yet valid", "cut", "second cut", "no PEM", "empty", "key cut", "encrypted", "RSA",
    "P-384", "Ed25519", "another CA", "issuer is no CA", "no CA in it", "missing", "a directory",
]  # fmt: skip


@pytest.mark.parametrize("how", DAMAGED)
def test_a_bad_one_never_replaces_a_good_one(tmp_path, ca, good, how):
    change, said = _damaged(ca, good)[how]
    write(tmp_path, good, ca.pem)
    store, told = CertificateStore(tmp_path), []
    store.subscribe(told.append)
    held = store.current
    if isinstance(change, dict):
        for name, content in change.items():
            (tmp_path / name).unlink()
            if content is ...:
                (tmp_path / name).mkdir()
            elif content is not None:
                (tmp_path / name).write_bytes(content)
    else:
        write(tmp_path, change, ca.pem)
    for _ in range(2):
        store.look()
        assert store.current is held
        assert re.search(said, store.problem), store.problem
        assert str(tmp_path) in str(store.problem)
    assert len(told) == 1
    fresh = CertificateStore(tmp_path)  # a process that starts now
    assert fresh.current is None
    assert re.search(said, fresh.problem)
    if (tmp_path / "tls.crt").is_dir():
        (tmp_path / "tls.crt").rmdir()
    write(tmp_path, good, ca.pem)
    store.look()
    assert store.problem is None


def test_files_that_are_back_as_they_were_are_no_news(tmp_path, ca, good):
    store = CertificateStore(write(tmp_path, good, ca.pem))
    (tmp_path / "tls.key").rename(tmp_path / "away")
    store.look()
    assert store.problem is not None
    (tmp_path / "away").rename(tmp_path / "tls.key")
    store.look()
    assert store.problem is None


def test_one_that_expires_on_disk_is_kept_and_told_of(tmp_path, ca, good):
    clock = Clock()
    store = CertificateStore(write(tmp_path, good, ca.pem), now=clock)
    held, clock.ahead = store.current, 91 * DAY
    store.look()
    assert store.current is held
    assert "has expired" in str(store.problem)


def test_one_that_becomes_valid_is_taken_without_a_change_of_files(tmp_path, ca):
    clock = Clock()
    store = CertificateStore(write(tmp_path, ca.issue(NAME, begins=DAY), ca.pem), now=clock)
    told = []
    store.subscribe(told.append)
    assert (store.current, told) == (None, [])
    clock.ahead = 2 * DAY
    store.look()
    assert (store.problem, told[0].names) == (None, (f"dns:{NAME}",))


@pytest.mark.parametrize("as_directory", [False, True])
def test_roots_alone_are_a_store_too(tmp_path, ca, as_directory):
    path = write(tmp_path, None, ca.pem) if as_directory else write(tmp_path, None, ca.pem) / "ca.crt"
    clock = Clock()
    store = CertificateStore(path, load_roots, clock)
    assert (store.current.roots_pem, store.current.chain_pem) == (ca.pem, b"")
    both = ca.pem + Authority("next").pem
    write(tmp_path, None, both)
    store.look()
    assert store.current.roots_pem == both
    clock.ahead = 4000 * DAY
    store.look()
    assert "ca.crt has no certificate that has not expired" in str(store.problem)
    assert store.current.roots_pem == both

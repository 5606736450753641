"""Keys of a run: the kit's key must vouch for them, for this run and this site."""

from dataclasses import replace

import pytest

from wardround.core.errors import SecureSumError
from wardround.privacy.secure_sum.run_keys import PublicRunKey, Voucher, check_vouchers, run_key, vouch
from wardround.privacy.secure_sum.simulated_sum import SimulatedKey

KITS = {site: SimulatedKey() for site in ("north", "south")}


def vouchers(run: bytes = b"run") -> list[Voucher]:
    return [vouch(kit, run_key(bytes(32), run, site), run, site) for site, kit in KITS.items()]


def test_keys_that_are_vouched_for_verify_what_they_signed() -> None:
    known = check_vouchers("north", b"run", vouchers(), KITS)
    signature = run_key(bytes(32), b"run", "south").sign(b"content")
    assert known["south"].verify(signature, b"content")
    assert not known["south"].verify(signature, b"other content")
    assert not known["north"].verify(signature, b"content")
    assert not known["south"].verify(b"", b"content")
    assert not PublicRunKey(b"short").verify(signature, b"content")


def test_a_key_comes_from_secret_run_and_site() -> None:
    arguments = [(bytes(32), b"run", "north"), (bytes(31) + b"1", b"run", "north"), (bytes(32), b"run 2", "north")]
    keys = [run_key(*each).public.content for each in [*arguments, (bytes(32), b"run", "south")]]
    assert len(set(keys)) == 4
    assert run_key(*arguments[0]).public.content == keys[0]


@pytest.mark.parametrize("part", ["key", "signature"])
def test_a_changed_voucher_is_refused(part: str) -> None:
    north, south = vouchers()
    content: bytes = getattr(south, part)
    changed = {part: content[:-1] + bytes([content[-1] ^ 1])}
    with pytest.raises(SecureSumError, match="in the name of south is not vouched for"):
        check_vouchers("north", b"run", [north, replace(south, **changed)], KITS)  # type: ignore[arg-type]


def test_a_voucher_for_another_run_or_site_is_refused() -> None:
    north, south = vouchers()
    with pytest.raises(SecureSumError, match="north is not vouched for"):
        check_vouchers("north", b"run", vouchers(b"another run"), KITS)
    with pytest.raises(SecureSumError, match="north is not vouched for"):
        check_vouchers("north", b"run", [replace(south, site="north"), north], KITS)
    with pytest.raises(SecureSumError, match="stranger is not vouched for"):
        check_vouchers("north", b"run", [replace(south, site="stranger")], KITS)


def test_a_second_key_of_a_site_is_refused() -> None:
    second = vouch(KITS["south"], run_key(bytes(range(32)), b"run", "south"), b"run", "south")
    with pytest.raises(SecureSumError, match="two keys in one run"):
        check_vouchers("north", b"run", [*vouchers(), second], KITS)

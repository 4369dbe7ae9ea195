"""The functions of nki.isa for registers and for the version of the core."""

from __future__ import annotations

from typing import Any

from glia.isa.instructions.sync import Barrier, RegisterLoad, RegisterMove, RegisterStore
from glia.isa.kit import Instr
from glia.nki.issue.instruction import attribute, issue
from glia.nki.names.enums import nc_version
from glia.nki.names.errors import NotInNki
from glia.nki.names.targets import platform_target
from glia.nki.session.session import Session, caller, current, is_running
from glia.nki.tensors.nki_tensor import NkiTensor
from glia.nki.tensors.registers import VirtualRegister


def register_alloc(x: int | None = None) -> VirtualRegister:
    """A new register, initialised with `x` if given."""
    session = current("nki.isa.register_alloc")
    register = VirtualRegister(session.new_register("r"))
    if x is not None:
        register_move(register, x)
    return register


def register_move(dst: VirtualRegister, src: int | VirtualRegister) -> None:
    """Set a register to an integer or to the value of another register."""
    session = current("nki.isa.register_move")
    if not isinstance(src, int | VirtualRegister) or isinstance(src, bool):
        raise NotInNki(feature=f"register_move from a {type(src).__name__}", loc=caller())
    fields = {"register": _writable_name(dst), "value": attribute(src, caller())}
    issue_setting(session, "register_move", RegisterMove, fields)


def register_load(dst: VirtualRegister, src: NkiTensor) -> None:
    """Load a 32-bit integer, a tensor of one element in HBM or SBUF, into a register."""
    session = current("nki.isa.register_load")
    fields = {"src": src, "register": _writable_name(dst)}
    issue_setting(session, "register_load", RegisterLoad, fields)


def register_store(dst: NkiTensor, src: VirtualRegister) -> None:
    """Store the value of a register to a tensor of one integer in HBM or SBUF."""
    session = current("nki.isa.register_store")
    if not isinstance(src, VirtualRegister):
        raise NotInNki(feature=f"register_store of a {type(src).__name__}", loc=caller())
    issue(session, "register_store", RegisterStore, {"dst": dst, "value": src})


def issue_setting(session: Session, name: str, kind: type[Instr], fields: dict[str, Any]) -> None:
    """Issue an instruction that sets a register, which all engines then see."""
    issue(session, name, kind, fields)
    session.issue(Barrier(loc=caller()))


def _writable_name(register: object) -> str:
    if not isinstance(register, VirtualRegister):
        raise NotInNki(feature=f"a register of type {type(register).__name__}", loc=caller())
    return register.writable_name()


def get_nc_version() -> nc_version:
    """The NeuronCore generation of the kernel's target."""
    target = current("nki.isa.get_nc_version").target if is_running() else platform_target()
    return nc_version(max(2, target.arch.generation))


def get_nc_sub_version() -> int:
    """The revision of the silicon: 0, the first."""
    return 0

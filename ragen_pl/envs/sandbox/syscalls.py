"""The system calls that a sandboxed program is refused, as a seccomp filter.

Resource limits bound the memory of processes and files. Refused is what would hold memory outside
them (shared segments, anonymous files, file systems mounted in a new namespace), what reaches past
namespaces (sockets of virtual machines), and what only widens the kernel's attack surface.
"""

from __future__ import annotations

import platform
import struct

from ragen_pl.errors import ConfigError

_COMMON = {"clone3": 435, "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsmount": 432}
_COMMON |= {"fspick": 433, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427}
_COMMON |= {"memfd_secret": 447}
_X86_64 = {"socket": 41, "shmget": 29, "semget": 64, "msgget": 68, "mq_open": 240}
_X86_64 |= {"unshare": 272, "setns": 308, "mount": 165, "umount2": 166, "pivot_root": 155}
_X86_64 |= {"ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "bpf": 321}
_X86_64 |= {"add_key": 248, "request_key": 249, "keyctl": 250, "memfd_create": 319}
_X86_64 |= {"perf_event_open": 298, "userfaultfd": 323, "open_by_handle_at": 304}
_AARCH64 = {"socket": 198, "shmget": 194, "semget": 190, "msgget": 186, "mq_open": 180}
_AARCH64 |= {"unshare": 97, "setns": 268, "mount": 40, "umount2": 39, "pivot_root": 41}
_AARCH64 |= {"ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "bpf": 280}
_AARCH64 |= {"add_key": 217, "request_key": 218, "keyctl": 219, "memfd_create": 279}
_AARCH64 |= {"perf_event_open": 241, "userfaultfd": 282, "open_by_handle_at": 265}
_MACHINES = {
    "x86_64": (0xC000003E, 56, _COMMON | _X86_64),
    "aarch64": (0xC00000B7, 220, _COMMON | _AARCH64),
}
"""Of each machine: its number for audits, the number of ``clone``, and what is refused."""

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _MACHINE, _FIRST_ARGUMENT = 0, 4, 16
"""Offsets of what the kernel shows a filter; of an argument, the lower half."""
_ALLOW, _KILL, _EPERM, _ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026
_X32 = 0x40000000
_NEW_NAMESPACES = 0x7E020000
"""All CLONE_NEW* flags that ``clone`` takes."""


def syscall_filter() -> bytes:
    """Return the filter for this machine, as the program of the Berkeley packet filter.

    ``clone3`` does not exist for the program, since a filter cannot read its flags: the C library
    then takes ``clone``.

    Raises:
        ConfigError: if the numbers of this machine's calls are not known here.
    """
    machine = platform.machine()
    if machine not in _MACHINES:
        raise ConfigError(
            f"the sandbox for programs knows the machines {' and '.join(_MACHINES)}, and this one "
            f"is {machine!r}: run environments that execute programs on one of those"
        )
    audit, clone, refused = _MACHINES[machine]
    lines = [
        (_LOAD, 0, 0, _MACHINE),
        (_EQUAL, 1, 0, audit),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _KILL),
    ]
    for name, number in refused.items():
        answer = _ENOSYS if name == "clone3" else _EPERM
        lines += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, answer)]
    lines += [
        (_EQUAL, 0, 3, clone),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_ANY_BIT, 0, 1, _NEW_NAMESPACES),
        (_RETURN, 0, 0, _EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("<HBBI", *line) for line in lines)

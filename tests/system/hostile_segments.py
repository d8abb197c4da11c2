"""Statistics segments as an enemy would write them."""
import os
import pathlib
import struct


def process_start(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def segment(name, tables, version=1, lie=0):
    """A statistics segment (pollcore/statistics.hpp). Tables: [(name, [(field, kind, unit, bytes)], [row])]. It is longer by `lie` than it is."""
    header_bytes, table_bytes, field_bytes = 152, 64, 56
    fields = [field for _, its, _ in tables for field in its]
    rows_at = header_bytes + table_bytes * len(tables) + field_bytes * len(fields)
    body, described, first_field = b"", b"", 0
    for table, its, rows in tables:
        row_bytes = 8 + sum(size for *_, size in its)
        described += struct.pack("<32sQIIIIII", table, rows_at + len(body), row_bytes, len(rows), len(rows), first_field, len(its), 0)
        first_field += len(its)
        body += b"".join(struct.pack("<Q", 2) + b"".join(part.ljust(size, b"\0")[:size] for part, (*_, size) in zip(row, its)) for row in rows)
    places = b""
    for _, its, _ in tables:
        at = 8
        for field, kind, unit, size in its:
            places += struct.pack("<48sBBHI", field, kind, unit, size if kind == 4 else size // 8, at)
            at += size
    header = struct.pack("<8sIIQIIIIQIIQQQQ64s", b"pollstat", version, header_bytes, rows_at + len(body) + lie, len(tables), table_bytes, len(fields), field_bytes,
                         1_000_000_000, os.getpid(), os.geteuid(), process_start(os.getpid()), 1, 1, 1, name)
    return header + described + places + body


def hostile_segments():
    """Files that anybody may put into /dev/shm."""
    evil = b'"} 1\nevil{x="y\\'
    number = (1).to_bytes(8, "little")
    most = b"\xff" * 8
    worker = [(b"worker", 1, 0, 8), (b"name", 4, 0, 32), (b"steps", 2, 0, 8), (evil, 3, 0, 8), (b"longest_step", 3, 1, 8), (b"wake_up", 5, 1, 320),
              (b"le", 1, 0, 8), (b"runtime", 1, 0, 8), (b"text", 4, 0, 8)]
    row = [number, evil + b"\xff\xfe", most, most, most, most * 40, number, number, b"\x00\x01\x02"]
    # A metric with another type than the daemons'.
    device = [(b"device", 1, 0, 8), (b"name", 4, 0, 8), (b"lost", 2, 0, 8), (b"info", 3, 0, 8)]
    whole = segment(evil + b"\xc3", [(b"worker", worker, [row, row]), (b"device", device, [[number, b"\xc0\xaf", number, number]]), (evil, device, [])])
    prefix = f"pollcore-hostile{os.getpid()}-"
    return {f"{prefix}names.statistics": whole,
            os.fsdecode(prefix.encode() + b'na\nme"\xff.statistics'): whole,
            f"{prefix}empty.statistics": b"",
            f"{prefix}short.statistics": whole[:-100],
            f"{prefix}header.statistics": whole[:70],
            f"{prefix}version.statistics": segment(b"later", [], version=2),
            f"{prefix}lie.statistics": segment(b"lie", [(b"worker", worker, [row])], lie=1 << 40),
            f"{prefix}garbage.statistics": bytes((i * 7919) % 251 for i in range(100_000))}

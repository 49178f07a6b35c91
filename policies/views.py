"""The compiled side of `layout.FIELDS`: a pool is two addresses and three lengths, passed by value, and `p.heat` is an array.

Passing the arrays themselves (a named tuple of 38) was tried: 35 s to compile and 1 M ids/s, for every call copied 2 KB.
Offsets are sums of the lengths with constant factors, so the compiler keeps them in registers.
"""

from __future__ import annotations

from numba import carray, njit, types
from numba.core import cgutils
from numba.np.arrayobj import make_array, populate_array
from numba.extending import intrinsic, models, overload_attribute, register_model

from .layout import FIELDS, HEAD_WORDS, RECORD_BYTES, SHARED, field_terms
from .pointers import as_float64, as_int32, as_int64, as_uint8, as_uint32


class PoolType(types.Type):
    """Compiled type of a pool: `shared` and `region` are addresses; lengths are those of the region's arrays."""

    def __init__(self):
        super().__init__(name="SlotwisePool")


pool_type = PoolType()
_MEMBERS = ("shared", "region", "keys", "slots", "experts", "padded_keys", "padded_slots", "padded_experts")


@register_model(PoolType)
class _PoolModel(models.StructModel):
    def __init__(self, manager, fe_type):
        super().__init__(manager, fe_type, [(name, types.int64) for name in _MEMBERS])


@intrinsic
def _make_pool(typing_context, shared, region, keys, slots, experts, padded_keys, padded_slots, padded_experts):
    def codegen(context, builder, signature, args):
        pool = cgutils.create_struct_proxy(pool_type)(context, builder)
        for name, value in zip(_MEMBERS, args, strict=True):
            setattr(pool, name, value)
        return pool._getvalue()

    return pool_type(*[types.int64] * 8), codegen


@intrinsic(prefer_literal=True)
def _member(typing_context, pool, index):
    at = index.literal_value

    def codegen(context, builder, signature, args):
        return builder.extract_value(args[0], at)

    return types.int64(pool_type, index), codegen


_POINTERS = {
    "int64": as_int64,
    "float64": as_float64,
    "int32": as_int32,
    "uint32": as_uint32,
    "uint8": as_uint8,
}


@intrinsic
def _strided(typing_context, pointer, length):
    """One field of all key records: an array of `length` with the record's size as its stride."""
    array = types.Array(pointer.dtype, 1, "A")

    def codegen(context, builder, signature, args):
        view = make_array(array)(context, builder)
        size = context.get_abi_sizeof(context.get_data_type(pointer.dtype))
        stride = context.get_constant(types.intp, RECORD_BYTES)
        item = context.get_constant(types.intp, size)
        populate_array(view, data=args[0], shape=[args[1]], strides=[stride], itemsize=item, meminfo=None)
        return view._getvalue()

    return array(pointer, types.int64), codegen


def _attribute(name: str, source: str, dtype: str) -> None:
    scope = {"carray": carray, "pointer": _POINTERS[dtype], "member": _member, "strided": _strided}
    exec(source, scope)
    overload_attribute(PoolType, name, jit_options={"forceinline": True})(lambda p: scope["view"])


_COUNT = {
    "H": str(HEAD_WORDS),
    "K": "member(p, 2)",
    "S": "member(p, 3)",
    "E": "member(p, 4)",
    "T": "4 * member(p, 4) + member(p, 3) + member(p, 2)",
}


def _register() -> None:
    for name, dtype, length in FIELDS:
        constant, by_keys, by_slots, by_experts = field_terms(name)
        at = f"member(p, 1) + {constant}"
        if length == "R":
            view = f"strided(pointer({at}), member(p, 2) + 1)"
        else:
            at += f" + {by_keys} * member(p, 5) + {by_slots} * member(p, 6) + {by_experts} * member(p, 7)"
            view = f"carray(pointer({at}), ({_COUNT[length]},))"
        _attribute(name, f"def view(p):\n    return {view}\n", dtype)
    words = {"shared": ("int64", 0), "ratio": ("float64", SHARED.index("guard_ratio"))}
    first = SHARED.index("parameter0")
    words |= {"ints": ("int64", first), "floats": ("float64", first)}
    for name, (dtype, word) in words.items():
        _attribute(
            name,
            f"def view(p):\n    return carray(pointer(member(p, 0) + {8 * word}), ({len(SHARED) - word},))\n",
            dtype,
        )
    at = SHARED.index("row_bytes_at")
    _attribute(
        "row_bytes",
        "def view(p):\n"
        f"    shared = carray(pointer(member(p, 0)), ({len(SHARED)},))\n"
        f"    return carray(pointer(member(p, 0) + shared[{at}]), (shared[0],))\n",
        "int64",
    )


_register()

_REGIONS_AT, _REGION_BYTES, _COUNTERS_AT = (SHARED.index(n) for n in ("regions_at", "region_bytes", "counters_at"))
_N_KEYS, _N_SLOTS, _N_EXPERTS = (SHARED.index(n) for n in ("n_keys", "n_slots", "n_experts"))
_N_SHARED, _PADDED = len(SHARED), SHARED.index("padded_keys")


@njit(forceinline=True)
def open_pool(address, pool):
    """The pool number `pool` of the buffer at `address`."""
    shared = carray(as_int64(address), (_N_SHARED,))
    region = address + shared[_REGIONS_AT] + pool * shared[_REGION_BYTES]
    keys, slots, experts = shared[_N_KEYS], shared[_N_SLOTS], shared[_N_EXPERTS]
    return _make_pool(address, region, keys, slots, experts, shared[_PADDED], shared[_PADDED + 1], shared[_PADDED + 2])


@njit
def live_counters(address):
    """Pointer to the counters [n_layers, n_counters] of live calls."""
    shared = carray(as_int64(address), (_N_SHARED,))
    return as_int64(address + shared[_COUNTERS_AT])

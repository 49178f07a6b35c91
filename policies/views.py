"""The compiled side of `layout.FIELDS`: a pool is passed as two addresses and six lengths, and `p.heat` is an array.

Passing the arrays themselves (a named tuple of 38) was tried: 35 s to compile and 1 M ids/s, for every call copied 2
KB. Offsets are sums of the lengths with constant factors, so the compiler keeps them in registers. The arrays carry
no reference count: the owner of the buffer outlives every call.
"""
# pyright: reportCallIssue=false, reportPrivateImportUsage=false

from __future__ import annotations

import numpy as np
from numba import carray, njit, types
from numba.core import cgutils
from numba.core.typing.templates import AttributeTemplate
from numba.extending import infer_getattr, intrinsic, lower_getattr_generic, models, register_model
from numba.np.arrayobj import make_array, populate_array
from numba.np.numpy_support import from_dtype

from .layout import FIELDS, HEAD_WORDS, RECORD_BYTES, SHARED, field_terms
from .pointers import as_int64


class PoolType(types.Type):
    """Compiled type of a pool: two addresses, and the lengths of its arrays, plain and padded."""

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


# Words of the shared head under names of their own: (dtype, first word, words).
_WORDS = {
    "shared": ("int64", 0, len(SHARED)),
    "ratio": ("float64", SHARED.index("guard_ratio"), 1),
    "ints": ("int64", SHARED.index("parameter0"), 8),
    "floats": ("float64", SHARED.index("parameter0"), 8),
}
_FIELDS = {name: (dtype, length) for name, dtype, length in FIELDS}


@infer_getattr
class _PoolAttributes(AttributeTemplate):
    key = PoolType

    def generic_resolve(self, typ, attr):
        if attr in _FIELDS:
            dtype, length = _FIELDS[attr]
            return types.Array(from_dtype(np.dtype(dtype)), 1, "A" if length == "R" else "C")
        if attr in _WORDS:
            return types.Array(from_dtype(np.dtype(_WORDS[attr][0])), 1, "C")
        if attr == "row_bytes":
            return types.Array(types.int64, 1, "C")
        return None


@lower_getattr_generic(PoolType)
def _pool_attribute(context, builder, typ, value, attr):
    """Builds the array of a field: address, length and stride."""
    member = {name: builder.extract_value(value, i) for i, name in enumerate(_MEMBERS)}
    number = lambda n: context.get_constant(types.int64, n)  # noqa: E731
    times = lambda name, n: builder.mul(member[name], number(n))  # noqa: E731
    stride = None
    if attr in _WORDS:
        dtype, first, words = _WORDS[attr]
        address, length = builder.add(member["shared"], number(8 * first)), number(words)
    elif attr == "row_bytes":
        dtype = "int64"
        shared = builder.inttoptr(member["shared"], context.get_value_type(types.CPointer(types.int64)))
        at = builder.load(builder.gep(shared, [number(SHARED.index("row_bytes_at"))]))
        address, length = builder.add(member["shared"], at), builder.load(shared)
    else:
        dtype, kind = _FIELDS[attr]
        constant, by_keys, by_slots, by_experts = field_terms(attr)
        address = builder.add(member["region"], number(constant))
        for name, factor in (("padded_keys", by_keys), ("padded_slots", by_slots), ("padded_experts", by_experts)):
            address = builder.add(address, times(name, factor)) if factor else address
        if kind == "R":
            stride, length = RECORD_BYTES, builder.add(member["keys"], number(1))
        elif kind == "T":
            length = builder.add(times("experts", 4), builder.add(member["slots"], member["keys"]))
        else:
            length = number(HEAD_WORDS) if kind == "H" else member[{"K": "keys", "S": "slots", "E": "experts"}[kind]]
    item = np.dtype(dtype).itemsize
    array = types.Array(from_dtype(np.dtype(dtype)), 1, "A" if stride else "C")
    view = make_array(array)(context, builder)
    pointer = builder.inttoptr(address, context.get_value_type(types.CPointer(array.dtype)))
    strides = [number(stride or item)]
    populate_array(view, data=pointer, shape=[length], strides=strides, itemsize=number(item), meminfo=None)
    return view._getvalue()


_REGIONS_AT, _REGION_BYTES, _COUNTERS_AT = (SHARED.index(n) for n in ("regions_at", "region_bytes", "counters_at"))
_N_KEYS, _N_SLOTS, _N_EXPERTS = (SHARED.index(n) for n in ("n_keys", "n_slots", "n_experts"))
_N_SHARED, _PADDED = len(SHARED), SHARED.index("padded_keys")


@njit(forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def open_pool(address, pool):
    """The pool number `pool` of the buffer at `address`."""
    shared = carray(as_int64(address), (_N_SHARED,))
    region = address + shared[_REGIONS_AT] + pool * shared[_REGION_BYTES]
    keys, slots, experts = shared[_N_KEYS], shared[_N_SLOTS], shared[_N_EXPERTS]
    return _make_pool(address, region, keys, slots, experts, shared[_PADDED], shared[_PADDED + 1], shared[_PADDED + 2])


@njit(forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
def live_counters(address):
    """Pointer to the counters [n_layers, n_counters] of live calls."""
    shared = carray(as_int64(address), (_N_SHARED,))
    return as_int64(address + shared[_COUNTERS_AT])

"""Typed pointers from an address: views made from them carry no reference count, which halves a live call."""
# pyright: reportCallIssue=false, reportPrivateImportUsage=false

from numba import types
from numba.extending import intrinsic, overload


def _pointer(dtype):
    @intrinsic
    def as_pointer(typing_context, address):
        signature = types.CPointer(dtype)(types.int64)

        def codegen(context, builder, sig, args):
            return builder.inttoptr(args[0], context.get_value_type(sig.return_type))

        return signature, codegen

    return as_pointer


as_int64 = _pointer(types.int64)
as_float64 = _pointer(types.float64)
as_int32 = _pointer(types.int32)
as_uint32 = _pointer(types.uint32)
as_uint8 = _pointer(types.uint8)


@intrinsic
def data_of(typing_context, array):
    """Pointer to the first element of a contiguous array, without its reference count."""
    signature = types.CPointer(array.dtype)(array)

    def codegen(context, builder, sig, args):
        return context.make_array(sig.args[0])(context, builder, args[0]).data

    return signature, codegen


@intrinsic
def address_of(typing_context, array):
    """Address of the first element of a contiguous array."""
    signature = types.int64(array)

    def codegen(context, builder, sig, args):
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        return builder.ptrtoint(data, context.get_value_type(types.int64))

    return signature, codegen


def whole_priority(value):
    """The value itself; a fraction does not compile, since it would be cut to a whole number in silence."""
    return value


@overload(whole_priority)
def _whole_priority(value):
    return (lambda value: value) if isinstance(value, types.Integer) else None

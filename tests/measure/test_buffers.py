import ctypes

import numpy as np
import pytest

from tests.measure.helpers import launch
from tfsearch.core.errors import InternalError
from tfsearch.core.launch import ArgumentSpec, EntrySpec, LaunchSpec
from tfsearch.ir.dtypes import DType
from tfsearch.measure.buffers import GuardedBuffer, HostArguments, bits, poison, poison_bits


def inputs():
    return {"a": np.ones((7, 9), np.float32), "b": np.ones((9, 5), np.float32)}


@pytest.mark.parametrize("alignment", [4, 64, 4096])
def test_addresses_are_aligned_to_what_is_promised_and_no_more(alignment):
    buffer = GuardedBuffer(ArgumentSpec("a", "f32", (3, 5), (5, 1), "in", alignment))
    assert buffer.address % alignment == 0
    assert buffer.address % (2 * alignment) != 0


@pytest.mark.parametrize("dtype", [d for d in DType if d.is_float])
@pytest.mark.parametrize("variant", [0, 1])
def test_float_poison_is_a_signalling_nan(dtype, variant):
    pattern = poison_bits(dtype.numpy, variant)
    significand = {"f64": 52, "f32": 23, "f16": 10, "bf16": 7}[dtype.value]
    assert not pattern >> (significand - 1) & 1
    with np.errstate(invalid="ignore"):
        assert np.isnan(poison((2,), dtype.numpy, variant)).all()
    assert (bits(poison((2, 3), dtype.numpy, variant)) == pattern).all()


def test_integer_poison_is_a_byte_pattern_and_both_variants_differ():
    assert poison((1,), np.dtype("i4"))[0] == np.uint32(0xA5A5A5A5).view(np.int32)
    for dtype in (d.numpy for d in (DType.I8, DType.I32, DType.F32, DType.BF16)):
        assert poison_bits(dtype, 0) != poison_bits(dtype, 1)


def test_signalling_nans_survive_writing_and_reading():
    arguments = HostArguments(launch(), inputs())
    arguments.write("c", poison((7, 5), np.dtype("f4")))
    assert (bits(arguments.read("c")) == poison_bits(np.dtype("f4"))).all()


@pytest.mark.parametrize(("offset", "word"), [(-1, "before"), (140, "after"), (4000, "after")])
def test_a_write_outside_of_a_buffer_is_reported(offset, word):
    arguments = HostArguments(launch(), inputs())
    assert arguments.damage() == []
    ctypes.memset(arguments.address("c") + offset, 1, 1)
    (line,) = arguments.damage()
    assert line.startswith("c: 1 bytes written")
    assert word in line


def test_a_write_between_strided_elements_is_reported():
    spec = ArgumentSpec("y", "bf16", (3, 4), (6, 1), "out", 64)
    arguments = HostArguments(LaunchSpec(EntrySpec("f", (spec,), 1, 0)), {})
    arguments.write("y", poison((3, 4), DType.BF16.numpy))
    assert arguments.damage() == []
    ctypes.memset(arguments.address("y") + 2 * 5, 1, 1)
    assert "gaps" in arguments.damage()[0]


def test_arguments_of_prepare_entries_are_allocated_too():
    packed = ArgumentSpec("packed", "f32", (64,), (1,), "out", 64)
    main = launch().main
    spec = LaunchSpec(main, (EntrySpec("pack", (main.arguments[1], packed), 1, 0),))
    assert HostArguments(spec, inputs()).arrays["packed"].shape == (64,)


def test_missing_and_misfit_values_are_refused():
    with pytest.raises(InternalError, match="'b'"):
        HostArguments(launch(), {"a": inputs()["a"]})
    with pytest.raises(InternalError, match="float32"):
        HostArguments(launch(), inputs()).write("c", np.zeros((7, 5)))

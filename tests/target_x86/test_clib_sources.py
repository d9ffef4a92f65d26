"""The texts that the package hands out."""

from __future__ import annotations

import re

import pytest
from clib_build import any_compiler, build

from tfsearch.target.x86 import clib

LOCAL = re.compile(r'^#include "', re.MULTILINE)


@pytest.mark.parametrize(
    "text",
    [clib.maths_source(), clib.support_source(), clib.amx_model_source(), clib.support_header()],
    ids=["maths", "support", "amx_model", "support_header"],
)
def test_a_source_needs_no_file_beside_it(text: str):
    assert not LOCAL.search(text)


def test_the_flat_maths_text_is_a_translation_unit_on_its_own(tmp_path):
    use = "float f(float x) { return tfs_exp_f32x1(x); }\n"
    build(tmp_path, clib.maths_source() + use, any_compiler(), ("-shared", "-fPIC"), "flat.so")


def test_fast_maths_flags_are_refused(tmp_path):
    with pytest.raises(AssertionError, match="IEEE"):
        build(tmp_path, '#include "maths.h"\n', any_compiler(), ("-ffast-math", "-c"), "bad.o")


def test_a_kernel_may_ask_for_one_width_only(tmp_path):
    text = (
        '#define TFS_USE_F32X8\n#include "maths.h"\nfloat f(float x) { return tfs_sin_f32x1(x); }\n'
    )
    build(tmp_path, text, any_compiler(), ("-mavx2", "-mfma", "-mf16c", "-c"), "one.o")


def test_every_c_file_counts_towards_the_identity():
    names = [path.name for path in clib.source_files()]
    assert {"maths.h", "maths_f32.h", "support.c", "support.h", "amx_model.h"} <= set(names)
    assert names == sorted(names)

"""The texts that the package hands out."""

from __future__ import annotations

import re

import pytest
from clib_build import any_compiler, build

from tfsearch.target.x86 import clib

LOCAL = re.compile(r'^#include "', re.MULTILINE)


def test_the_support_source_needs_no_file_beside_it():
    text = clib.support_source()
    assert "tfs_pool_create" in text
    assert not LOCAL.search(text)


def test_fast_maths_flags_are_refused(tmp_path):
    with pytest.raises(AssertionError, match="IEEE"):
        build(tmp_path, '#include "maths.h"\n', any_compiler(), ("-ffast-math", "-c"), "bad.o")


def test_a_kernel_may_ask_for_one_width_only(tmp_path):
    text = (
        '#define TFS_USE_F32X8\n#include "maths.h"\nfloat f(float x) { return tfs_sin_f32x1(x); }\n'
    )
    build(tmp_path, text, any_compiler(), ("-mavx2", "-mfma", "-mf16c", "-c"), "one.o")

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every method and every scan: one row each, by instruction set, best first.
//!
//! To add one, write its row here and its function in the directory of its instruction set. The
//! enumeration, the names, the order of preference, the types and the dispatch derive from the row.
//!
//! Each table calls the macro that it is given with all of its rows, because names exist on every
//! architecture and code only on its own.

/// Calls `$receiver` with all clearing methods but the portable one.
///
/// A row is: documentation, type, name, the condition under which this CPU executes it, the unit of
/// its loop in bytes, the loop in `leaf`, and `bypass` if its lines bypass the cache.
macro_rules! methods {
    ($receiver:ident) => {
        $receiver! {
            x86_64 {
                /// On x86-64: 64-byte non-temporal stores (AVX-512F).
                Avx512Nt "avx512-nt" [detected!("avx512f")] LINE_BYTES, avx512_nt, bypass;
                /// On x86-64: 32-byte non-temporal stores (AVX). Named after AVX2, the level at
                /// which CPUs are usually bought.
                Avx2Nt "avx2-nt" [detected!("avx2")] LINE_BYTES, avx_nt, bypass;
                /// On x86-64: 16-byte non-temporal stores (SSE2, every x86-64).
                Sse2Nt "sse2-nt" [true] LINE_BYTES, sse2_nt, bypass;
                /// On x86-64, AMD: one cache line per instruction, without reading it first.
                Clzero "clzero" [has_clzero()] LINE_BYTES, clzero, bypass;
                /// On x86-64: the string instruction on bytes. Microcode picks the protocol by
                /// length: on Zen 4 it stops reading the lines first only above the size of the
                /// last-level cache.
                RepStosb "rep-stosb" [true] 1, rep_stosb, keep;
                /// On x86-64: the string instruction on 8-byte words.
                RepStosq "rep-stosq" [true] 8, rep_stosq, keep;
                /// On x86-64: 32-byte cached stores (AVX).
                Avx2 "avx2" [detected!("avx2")] LINE_BYTES, avx_cached, keep;
            }
            aarch64 {
                /// On aarch64: one block (64 bytes on most CPUs) per instruction, without reading
                /// it first.
                DcZva "dc-zva" [zva_bytes().is_some()] zva_bytes().unwrap_or(LINE_BYTES), dc_zva, keep;
                /// On aarch64: pairs of 16-byte stores with a non-temporal hint.
                Stnp "stnp" [true] LINE_BYTES, stnp, bypass;
                /// On aarch64: pairs of 16-byte cached stores.
                Stp "stp" [true] LINE_BYTES, stp, keep;
            }
        }
    };
}
pub(crate) use methods;

/// Calls `$receiver` with all scans but the portable one.
///
/// A row is: documentation, variant, name, and the function in `scan` that returns the search
/// where this CPU executes it.
macro_rules! scans {
    ($receiver:ident) => {
        $receiver! {
            x86_64 {
                /// On x86-64: 64 bytes at a time (AVX-512F).
                Avx512 "avx512" avx512;
                /// On x86-64: 32 bytes at a time (AVX2).
                Avx2 "avx2" avx2;
                /// On x86-64: 16 bytes at a time.
                Sse2 "sse2" sse2;
            }
            aarch64 {
                /// On aarch64: 16 bytes at a time.
                Neon "neon" neon;
            }
        }
    };
}
pub(crate) use scans;

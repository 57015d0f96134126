// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Is it zero? And if not, where?

/// Whether every byte is zero. True for no bytes.
#[must_use]
pub fn is_zero(bytes: &[u8]) -> bool {
    first_nonzero(bytes).is_none()
}

/// The offset of the first byte that is not zero.
#[must_use]
pub fn first_nonzero(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|byte| *byte != 0)
}

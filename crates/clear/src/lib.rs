// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bytes to zero, as fast as this CPU can.

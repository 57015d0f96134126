// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Take ready huge pages from the prezero daemon.

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The shell around the model.

//! Everything prezero asks of the kernel.

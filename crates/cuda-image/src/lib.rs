//! Module images: fatbins, cubins and PTX, found by pointer and cut down to what a GPU can use.

"""Our operators: their C++ sources, how they are built and loaded; calls of torch and of MKL."""

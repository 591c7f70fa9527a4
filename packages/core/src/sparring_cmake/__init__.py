"""Where CMake finds the header of the storage ABI: ``include/`` and ``share/cmake/sparring/``.

A package of its own, because a build imports the module behind the entry point ``cmake.prefix``, and
building a backend must not need a working `sparring`.
"""

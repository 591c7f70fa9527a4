"""Fuzzing: invalid and hostile input, guided by code coverage.

`python -m fuzz [MINUTES] [NAME …]` runs three targets for the given minutes of processor time each, and
prints the code coverage; `nox -s fuzz -- MINUTES` does it in a separate environment.

    packed     packages/packed/native/fuzz/reader_fuzz.cc, libFuzzer: manifests and mapped files
    requests   fuzz/requests.py, atheris: gRPC messages, up to the replies of the service
    calls      fuzz/calls.py, atheris: silent, incomplete and slow calls, up to the threads of a server

`python -m fuzz.front_ends SECONDS` compares the two servers of lookups on random requests, without
coverage.

Inputs that reached new code are stored in `build/fuzz`, where the next run starts. A crash, a hang or an
unexpected error ends the run with 1; the input is then in the file that the fuzzer prints.
"""

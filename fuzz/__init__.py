"""Fuzzing: bytes that no one would send in good faith, steered by which code they reach.

`python -m fuzz [MINUTES] [NAME …]` feeds three targets, each for so many minutes of processor time, and
prints how much of the code was reached; `nox -s fuzz -- MINUTES` does it in an environment of its own.

    packed     packages/packed/native/fuzz/reader_fuzz.cc, libFuzzer: manifests and mapped files
    requests   fuzz/requests.py, atheris: messages of gRPC, up to the answers of the service
    calls      fuzz/calls.py, atheris: silent, half-sent and slow calls, up to the threads of a server

Bytes that reached new code are kept in `build/fuzz`, where the next run begins. A crash, a hang or an
error that is no refusal ends the run with 1; the bytes are then in the file that the fuzzer names.
"""

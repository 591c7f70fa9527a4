"""Fuzzing: invalid and hostile input, guided by code coverage.

`python -m fuzz [MINUTES] [NAME …]` runs the targets for the given minutes of processor time each;
`nox -s fuzz -- MINUTES` does it in a separate environment. Targets of libFuzzer run under
AddressSanitizer and UBSan. Targets of atheris are guided by the coverage of Python; the native module of
core that they call is built with both sanitizers. Arrow, which parses files, is not.

    packed           libFuzzer: manifests and mapped files of serving snapshots
    storage          libFuzzer: calls of the storage ABI, compared with a map
    native_requests  libFuzzer: messages to the native server
    requests         atheris: messages to the server in Python, up to its replies
    calls            atheris: silent, incomplete and slow calls, up to the threads of a server
    configurations   atheris: YAML of runs, services and plans
    snapshots        atheris: files and manifests of snapshots
    csv, parquet     atheris: files of examples
    streams          atheris: payloads of events

`python -m fuzz.front_ends SECONDS` compares the two servers of lookups on random requests, without
coverage.

Each run starts from seeds that it generates, from `fuzz/corpus`, which contains former findings, and from
the inputs in `build/fuzz` that reached new code before. A crash, a hang, a sanitizer's report, too much
memory or an undocumented error ends a target with 1; the input is then in the file that is printed.
`build/fuzz/statistics.json` contains the executions, the coverage and the findings of each target.
"""

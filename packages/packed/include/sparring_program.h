/*
 * Exported programs: binds the embedding tables of a program to a serving snapshot,
 * and takes newer versions while the program runs. Without Python. The functions are
 * of libsparring_packed.so.
 *
 * A bundle is the folder that export_program of a framework's adapter wrote:
 *
 *   bundle.json                what it was made of, for people and for Python
 *   files.txt                  a line "sparring-program-files/1 HASH" of the lines below it, then a line
 *                              "HASH name" of each other file; hashes are XXH3-64
 *   binding.txt                a line of the handle, then a line "dim name" of each table
 *   program.pt2, saved_model/  PyTorch's AOTInductor package, or TensorFlow's SavedModel
 *   lib/libsparring_program.so the operators of the program
 *   lib/libsparring_packed.so  the reader of serving snapshots, and these functions
 *   include/                   headers
 *
 * HANDLE
 *   "exact:HASH:NAME" or "follow:HASH:NAME". HASH is of the manifest of the serving
 *   snapshot that the program was exported for. Each lookup in the program carries
 *   the handle, so a program finds nothing but tables that were bound for it: of that
 *   very version, or, where the export allowed it ("follow"), of any version of the
 *   same tables.
 *
 * ORDER
 *   Bind, load the program with the framework, run.
 *
 * THREADS
 *   All functions and all runs of programs may go on at the same time. A run that
 *   looks up in several operators may see a refresh between two of them.
 *
 * ERRORS
 *   Functions return 0, or 1 and a message from sparring_program_error.
 */
#ifndef SPARRING_PROGRAM_H_
#define SPARRING_PROGRAM_H_

#include "sparring_packed.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Compares every file of `bundle` with its hash, and opens `served`, a serving snapshot or a folder of
 * them, for the program of it. Load the program afterwards: then no damaged file runs, except for the
 * libraries in lib/, which the system loads before it calls this.
 * Once more for the same program: takes it in place of the one before. */
SPARRING_PACKED_API int32_t sparring_program_bind(const char* bundle, const char* served);

/* Takes the newest version of the folder that was bound. `is_changed` is set to 1 if there
 * was one, else 0. A program that is bound to one version refuses. */
SPARRING_PACKED_API int32_t sparring_program_refresh(const char* bundle, int32_t* is_changed);

/* The hash of the manifest of the version that is read, and its step of training. */
SPARRING_PACKED_API int32_t sparring_program_version(const char* bundle, char hash[33],
                                                      int64_t* step);

/* Closes the tables of a program. Runs under way end first. */
SPARRING_PACKED_API int32_t sparring_program_release(const char* bundle);

/* Describes `served` in `room` bytes at `text`: a line of the hash of its newest version, then a
 * line "dim name" of each table. For exports. */
SPARRING_PACKED_API int32_t sparring_program_describe(const char* served, char* text,
                                                       uint64_t room);

/* For operators: rows of ids, or sums and means of bags, in the tables that are bound to `handle`.
 * Of each request the arguments name the table and the dim that the program expects of it, and
 * `table` is filled in. All requests are answered by one version. `request_bytes` is
 * sizeof(SparringPackedRequest) as the operator knows it: that of another release is refused. */
SPARRING_PACKED_API int32_t sparring_program_lookup(const char* handle, int64_t num_requests,
                                                    const char* const* tables, const int64_t* dims,
                                                    SparringPackedRequest* requests,
                                                    uint64_t request_bytes);
SPARRING_PACKED_API int32_t sparring_program_pool(const char* handle, int64_t num_requests,
                                                  const char* const* tables, const int64_t* dims,
                                                  SparringPackedRequest* requests,
                                                  uint64_t request_bytes);

/* The message of the last error of the calling thread. */
SPARRING_PACKED_API const char* sparring_program_error(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SPARRING_PROGRAM_H_ */

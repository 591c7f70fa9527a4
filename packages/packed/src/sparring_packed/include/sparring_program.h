/*
 * Exported programs: binds the embedding tables of a program to a serving snapshot,
 * and switches to newer versions of rows and parameters while the program runs, without
 * Python. The functions are part of libsparring_packed.so.
 *
 * A bundle is the folder that export_program of a framework's adapter wrote:
 *
 *   bundle.json                description of the bundle, for users and for Python
 *   files.txt                  a line "sparring-program-files/1 HASH" with the hash of the other lines,
 *                              then a line "HASH name" per other file; hashes are XXH3-64
 *   binding.txt                a line with the handle, then a line "dim name" per table
 *   parameters.txt             only with "follow": a line "dtype sizes place name" per parameter that the
 *                              program reads from versions, such as "F32 64,32 - top.weight". `name` is
 *                              the one in parameters.safetensors of serving snapshots. If `place` is a
 *                              number and the file lists its names in order, as the metadata `names`,
 *                              the name at this place is used instead: Keras numbers names per process
 *   parameters.safetensors     their values at the export, for versions that contain only rows
 *   program.pt2, saved_model/  PyTorch's AOTInductor package, or TensorFlow's SavedModel
 *   lib/libsparring_program.so the operators of the program
 *   lib/libsparring_packed.so  the reader of serving snapshots, and these functions
 *   include/                   headers
 *
 * HANDLE
 *   "exact:HASH:NAME" or "follow:HASH:NAME". HASH is the hash of the manifest of the
 *   serving snapshot that the program was exported for. Each lookup in the program
 *   contains the handle, so a program only finds tables that were bound for it: of that
 *   exact version, or, if the export allowed it ("follow"), of any version of the same
 *   tables.
 *
 * ORDER
 *   Bind, load the program with the framework, run. If there is parameters.txt, each run of a PyTorch
 *   program is enclosed by sparring_program_begin and _end; sparring_torch_program.h does so.
 *   Operators of TensorFlow do it themselves.
 *
 * THREADS
 *   All functions and all runs of programs may run at the same time. Between begin and
 *   end, a run reads all rows and parameters from one version, also if a refresh happens meanwhile.
 *   Lookups by a handle read the current version: without begin and end, a run that looks up in
 *   several operators may see a refresh between two of them.
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
 * serving snapshots, for its program. Load the program afterwards, so that no damaged file runs, except
 * for the libraries in lib/, which the system loads before it calls this.
 * Another call for the same program replaces its tables. */
SPARRING_PACKED_API int32_t sparring_program_bind(const char* bundle, const char* served);

/* Switches to the newest version of the folder that was bound, with its rows and, if the program reads
 * any, its parameters. `is_changed` is set to 1 if it is newer than the current one, else 0. Runs in
 * progress finish on their version. For a program that is bound to one version, it fails. It also fails
 * if parameters are missing, damaged, or of another shape or dtype; then the current version remains. */
SPARRING_PACKED_API int32_t sparring_program_refresh(const char* bundle, int32_t* is_changed);

/* Returns the hash of the manifest of the current version, and its training step. */
SPARRING_PACKED_API int32_t sparring_program_version(const char* bundle, char hash[33],
                                                      int64_t* step);

/* Closes the tables of a program after runs in progress have completed. */
SPARRING_PACKED_API int32_t sparring_program_release(const char* bundle);

/* Describes `served` in `text`, a buffer of `room` bytes: a line with the hash of its newest version,
 * then a line "dim name" per table. For exports. */
SPARRING_PACKED_API int32_t sparring_program_describe(const char* served, char* text,
                                                       uint64_t room);

/* For operators: rows of ids, or sums and means of bags, in the tables that are bound to `handle`.
 * The arguments contain the table of each request and the dim that the program expects; `table` of the
 * request is set. All requests read one version. `request_bytes` is
 * sizeof(SparringPackedRequest) in the operator; a size of another release causes an error. */
SPARRING_PACKED_API int32_t sparring_program_lookup(const char* handle, int64_t num_requests,
                                                    const char* const* tables, const int64_t* dims,
                                                    SparringPackedRequest* requests,
                                                    uint64_t request_bytes);
SPARRING_PACKED_API int32_t sparring_program_pool(const char* handle, int64_t num_requests,
                                                  const char* const* tables, const int64_t* dims,
                                                  SparringPackedRequest* requests,
                                                  uint64_t request_bytes);

/* For one run of a program: holds the current version of the program with `handle`, and sets `version`
 * to its number, until sparring_program_end is called with this number, once per begin. */
SPARRING_PACKED_API int32_t sparring_program_begin(const char* handle, int64_t* version);
SPARRING_PACKED_API int32_t sparring_program_end(int64_t version);

/* Like lookup and pool, in the version with a number from sparring_program_begin. */
SPARRING_PACKED_API int32_t sparring_program_lookup_in(int64_t version, int64_t num_requests,
                                                       const char* const* tables,
                                                       const int64_t* dims,
                                                       SparringPackedRequest* requests,
                                                       uint64_t request_bytes);
SPARRING_PACKED_API int32_t sparring_program_pool_in(int64_t version, int64_t num_requests,
                                                     const char* const* tables, const int64_t* dims,
                                                     SparringPackedRequest* requests,
                                                     uint64_t request_bytes);

/* A parameter of a held version. Its memory must not be written, and is valid until the end of the
 * run. */
typedef struct SparringProgramParameter {
  const char* name;     /* UTF-8                                       */
  const char* dtype;    /* as in safetensors files, for example "F32"  */
  int32_t num_dims;
  const int64_t* sizes; /* (num_dims)                                  */
  const void* data;     /* contiguous, aligned to 64 bytes             */
  uint64_t num_bytes;
} SparringProgramParameter;

/* Returns the number of parameters of a program, and one of them, in the order of parameters.txt.
 * `parameter_bytes` is sizeof(SparringProgramParameter) in the caller. */
SPARRING_PACKED_API int32_t sparring_program_num_parameters(int64_t version, int64_t* count);
SPARRING_PACKED_API int32_t sparring_program_parameter(int64_t version, int64_t place,
                                                       SparringProgramParameter* parameter,
                                                       uint64_t parameter_bytes);

/* For operators: keeps an object for a parameter, such as a tensor of the framework with a copy of it,
 * until the version is no longer needed; then `destroy` is called with it. If there is already
 * one, `*object` is set to that one, and the caller remains the owner of its own. If `*object` is NULL,
 * nothing is kept. */
SPARRING_PACKED_API int32_t sparring_program_keep(int64_t version, int64_t place, void** object,
                                                  void (*destroy)(void*));

/* Returns the message of the last error of the calling thread. */
SPARRING_PACKED_API const char* sparring_program_error(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* SPARRING_PROGRAM_H_ */

// Preloaded into the processes of a soak run: steps their clock, slows their disk, and measures their heap.
//
// SOAK_SHIM names a file of 16 bytes, which a process maps: two int64, the offset of the wall clock in
// nanoseconds, and the delay of each read, write and fsync of a regular file in microseconds. A rank uses
// the file with the suffix ".<RANK>". If both numbers are 0, calls are passed on unchanged.
//
// A stepped clock also moves the deadlines that the kernel compares with the real one, as a step of the
// machine's clock would. Monotonic clocks never change.
//
// SOAK_HEAPS names a folder, in which a process writes each second to a file with its id how many bytes it
// has allocated and not freed, an int64. A leak increases this number; fragmentation does not.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <malloc.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t kNanoseconds = 1000000000;
static const time_t kLeastWallSeconds = 1000000000;  // Monotonic clocks show the time since the boot.
static volatile int64_t unchanged[2];
static volatile int64_t* control = unchanged;

__attribute__((constructor)) static void map_control(void) {
  const char* name = getenv("SOAK_SHIM");
  const char* rank = getenv("RANK");
  char path[4096];
  if (!name) return;
  snprintf(path, sizeof path, rank ? "%s.%s" : "%s", name, rank);
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  void* found = mmap(NULL, sizeof unchanged, PROT_READ, MAP_SHARED, file, 0);
  if (found != MAP_FAILED) control = found;
  close(file);
}

static void* measure(void* unused) {
  const struct timespec second = {1, 0};
  char path[4096];
  snprintf(path, sizeof path, "%s/%d", getenv("SOAK_HEAPS"), getpid());
  int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  while (file >= 0) {
    struct mallinfo2 found = mallinfo2();
    int64_t size = (int64_t)(found.uordblks + found.hblkhd);
    if (syscall(SYS_pwrite64, file, &size, sizeof size, 0L) < 0) break;
    syscall(SYS_nanosleep, &second, NULL);
  }
  return unused;
}

static void start_measuring(void) {
  pthread_t thread;
  pthread_attr_t detached;
  sigset_t all, before;
  if (!getenv("SOAK_HEAPS")) return;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // The program's own threads receive signals.
  pthread_attr_init(&detached);
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  pthread_create(&thread, &detached, measure, NULL);
  pthread_attr_destroy(&detached);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

__attribute__((constructor)) static void start_in_each_process(void) {
  start_measuring();
  pthread_atfork(NULL, NULL, start_measuring);
}

// The next definition of a function. Old binaries' versions of some functions come first in dlsym.
static void* next(const char* name, const char* version) {
  void* found = dlvsym(RTLD_NEXT, name, version);
  return found ? found : dlsym(RTLD_NEXT, name);
}

static void move(struct timespec* time, int64_t offset) {
  int64_t all = time->tv_sec * kNanoseconds + time->tv_nsec + offset;
  time->tv_sec = all / kNanoseconds;
  time->tv_nsec = all % kNanoseconds;
}

// The deadline by the real clock.
static const struct timespec* real(const struct timespec* time, struct timespec* moved) {
  if (!time || !control[0] || time->tv_sec < kLeastWallSeconds) return time;
  *moved = *time;
  move(moved, -control[0]);
  return moved;
}

static int is_wall(clockid_t clock) {
  return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
}

int clock_gettime(clockid_t clock, struct timespec* time) {
  static int (*call)(clockid_t, struct timespec*);
  if (!call) call = next("clock_gettime", "GLIBC_2.17");
  int result = call(clock, time);
  if (!result && control[0] && is_wall(clock)) move(time, control[0]);
  return result;
}

int gettimeofday(struct timeval* restrict time, void* restrict zone) {
  struct timespec now;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &now);
  time->tv_sec = now.tv_sec;
  time->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* result) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (result) *result = now.tv_sec;
  return now.tv_sec;
}

int pthread_cond_timedwait(pthread_cond_t* restrict condition, pthread_mutex_t* restrict mutex,
                           const struct timespec* restrict time) {
  static int (*call)(pthread_cond_t*, pthread_mutex_t*, const struct timespec*);
  struct timespec moved;
  if (!call) call = next("pthread_cond_timedwait", "GLIBC_2.3.2");
  return call(condition, mutex, real(time, &moved));
}

int pthread_cond_clockwait(pthread_cond_t* restrict condition, pthread_mutex_t* restrict mutex,
                           clockid_t clock, const struct timespec* restrict time) {
  static int (*call)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*);
  struct timespec moved;
  if (!call) call = next("pthread_cond_clockwait", "GLIBC_2.34");
  return call(condition, mutex, clock, real(time, &moved));
}

int sem_timedwait(sem_t* restrict semaphore, const struct timespec* restrict time) {
  static int (*call)(sem_t*, const struct timespec*);
  struct timespec moved;
  if (!call) call = next("sem_timedwait", "GLIBC_2.34");
  return call(semaphore, real(time, &moved));
}

// gRPC waits for the futexes of its conditions itself.
long syscall(long number, ...) {
  static long (*call)(long, ...);
  struct timespec moved;
  va_list list;
  long a[6];
  va_start(list, number);
  for (int i = 0; i < 6; ++i) a[i] = va_arg(list, long);
  va_end(list);
  if (!call) call = next("syscall", "GLIBC_2.2.5");
  if (number == SYS_futex && (a[1] & FUTEX_CLOCK_REALTIME)) {
    a[3] = (long)real((const struct timespec*)a[3], &moved);
  }
  return call(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

static void delay(int file) {
  struct stat found;
  int64_t microseconds = control[1];
  if (!microseconds) return;
  int saved = errno;
  if (!fstat(file, &found) && S_ISREG(found.st_mode)) usleep((useconds_t)microseconds);
  errno = saved;
}

#define SLOW(result, name, parameters, arguments) \
  result name parameters {                        \
    static result(*call) parameters;              \
    if (!call) call = dlsym(RTLD_NEXT, #name);    \
    delay(file);                                  \
    return call arguments;                        \
  }

SLOW(ssize_t, read, (int file, void* data, size_t size), (file, data, size))
SLOW(ssize_t, write, (int file, const void* data, size_t size), (file, data, size))
SLOW(ssize_t, pread64, (int file, void* data, size_t size, off_t at), (file, data, size, at))
SLOW(ssize_t, pwrite64, (int file, const void* data, size_t size, off_t at), (file, data, size, at))
SLOW(int, fsync, (int file), (file))
SLOW(ssize_t, pread, (int file, void* data, size_t size, off_t at), (file, data, size, at))
SLOW(ssize_t, pwrite, (int file, const void* data, size_t size, off_t at), (file, data, size, at))
SLOW(int, fdatasync, (int file), (file))

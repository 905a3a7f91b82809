/* Kills the process at a chosen system call that changes a file; loaded with LD_PRELOAD.
 *
 * kill_at_call(n) arms it: the n-th call from then on is not carried out, or only half of it if it
 * is a write, and the process receives SIGKILL. fill_disk_at_call(n) lets writes and new folders fail
 * from then on as on a full disk. kill_calls() returns how many calls there were.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static long calls, fatal, full;

void kill_at_call(long n) { calls = 0; fatal = n; full = 0; }
void fill_disk_at_call(long n) { calls = 0; fatal = 0; full = n; }
long kill_calls(void) { return calls; }

static int is_fatal(void) { return ++calls == fatal; }
static int is_full(void) { errno = ENOSPC; return full && calls >= full; }
static void die(void) { kill(getpid(), SIGKILL); for (;;) pause(); }

static int is_file(int fd) {
    struct stat found;
    return fstat(fd, &found) == 0 && S_ISREG(found.st_mode);
}

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name);

ssize_t write(int fd, const void *data, size_t size) {
    REAL(ssize_t, "write", int, const void *, size_t)
    if (is_file(fd)) {
        if (is_fatal()) { real(fd, data, size / 2); die(); }
        if (is_full()) return -1;
    }
    return real(fd, data, size);
}

#define POSITIONED(name) \
    ssize_t name(int fd, const void *data, size_t size, off_t at) { \
        REAL(ssize_t, #name, int, const void *, size_t, off_t) \
        if (is_file(fd)) { \
            if (is_fatal()) { real(fd, data, size / 2, at); die(); } \
            if (is_full()) return -1; \
        } \
        return real(fd, data, size, at); \
    }
POSITIONED(pwrite)
POSITIONED(pwrite64)

#define CALL(name, types, names) CALL_OR(0, name, types, names)
#define CALL_OR(may_be_full, name, types, names) \
    int name types { \
        static int (*real) types; \
        if (!real) real = (int (*) types)dlsym(RTLD_NEXT, #name); \
        if (is_fatal()) die(); \
        if (may_be_full && is_full()) return -1; \
        return real names; \
    }
CALL(fsync, (int fd), (fd))
CALL(fdatasync, (int fd), (fd))
CALL(ftruncate, (int fd, off_t size), (fd, size))
CALL(ftruncate64, (int fd, off_t size), (fd, size))
CALL(rename, (const char *from, const char *to), (from, to))
CALL(renameat, (int a, const char *from, int b, const char *to), (a, from, b, to))
CALL(unlink, (const char *path), (path))
CALL(unlinkat, (int folder, const char *path, int flags), (folder, path, flags))
CALL(rmdir, (const char *path), (path))
CALL_OR(1, mkdir, (const char *path, mode_t mode), (path, mode))
CALL_OR(1, mkdirat, (int folder, const char *path, mode_t mode), (folder, path, mode))

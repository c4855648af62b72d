/* Preloaded into the server's processes, makes their positioned reads and writes slow, or the disk full.
 *
 * Only the KV store reads and writes at positions. CHAOS_DISK names a file of five 32-bit words that a test shares
 * with the server: the delay of each operation in microseconds, whether the disk is full, and the numbers of operations
 * that were delayed, of writes that were refused, and of other writes. See disk.py. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

struct control {
    _Atomic unsigned delay_us, is_full, num_delayed, num_refused, num_written;
};

static struct control none;
static struct control *control = &none;

__attribute__((constructor)) static void map_control(void) {
    const char *path = getenv("CHAOS_DISK");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof none, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED)
        control = mapped;
    close(file);
}

static void delay(void) {
    unsigned delay_us = control->delay_us;
    if (delay_us) {
        control->num_delayed++;
        usleep(delay_us);
    }
}

ssize_t pread64(int file, void *bytes, size_t count, off64_t offset) {
    delay();
    return syscall(SYS_pread64, file, bytes, count, offset);
}

ssize_t pwrite64(int file, const void *bytes, size_t count, off64_t offset) {
    delay();
    if (control->is_full) {
        control->num_refused++;
        errno = ENOSPC;
        return -1;
    }
    control->num_written++;
    return syscall(SYS_pwrite64, file, bytes, count, offset);
}

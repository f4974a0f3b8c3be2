// SPDX-License-Identifier: Apache-2.0
/* run_limited LIMIT PROGRAM...: run a test where something is not allowed.
 *
 *   no-uring  io_uring_setup answers EPERM (a seccomp filter, as container runtimes set)
 *   memlock   8 MiB of locked memory, and no capability to exceed them
 *   shm       files on the tmpfs at /dev/shm
 *
 * Exits with 77 (skip) where the limit itself cannot be set here.
 */
#include <errno.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#define TMPFS_MAGIC 0x01021994

static int forbid_uring(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {.len = sizeof(code) / sizeof(code[0]), .filter = code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -1;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

/* Root may lock without limit: the capability must go, and must not come back at exec. */
static int limit_locked_memory(void)
{
    const struct rlimit limit = {.rlim_cur = 8 << 20, .rlim_max = 8 << 20};
    if (setrlimit(RLIMIT_MEMLOCK, &limit) < 0)
        return -1;
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2];
    if (syscall(SYS_capget, &header, data) < 0)
        return -1;
    if (!(data[0].effective & (1u << CAP_IPC_LOCK)))
        return 0;
    if (prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0) < 0)
        return -1;
    data[0].effective &= ~(1u << CAP_IPC_LOCK);
    data[0].permitted &= ~(1u << CAP_IPC_LOCK);
    data[0].inheritable &= ~(1u << CAP_IPC_LOCK);
    return (int)syscall(SYS_capset, &header, data);
}

static int use_shm(void)
{
    struct statfs info;
    if (statfs("/dev/shm", &info) < 0 || info.f_type != TMPFS_MAGIC || access("/dev/shm", W_OK) < 0)
        return -1;
    return setenv("SLUICE_TEST_TMP", "/dev/shm", 1);
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    int code = !strcmp(argv[1], "no-uring")  ? forbid_uring()
               : !strcmp(argv[1], "memlock") ? limit_locked_memory()
               : !strcmp(argv[1], "shm")     ? use_shm()
                                             : -1;
    if (code < 0) {
        printf("SKIP: the limit %s cannot be set here: %s\n", argv[1], strerror(errno));
        return 77;
    }
    setenv("SLUICE_TEST_LIMIT", argv[1], 1);
    execv(argv[2], argv + 2);
    perror(argv[2]);
    return 1;
}

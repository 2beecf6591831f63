"""A small C library, built once a run: what tests of this corpus do damage with."""

from __future__ import annotations

import ctypes
import subprocess

import pytest

SOURCE = r"""
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
static char *rows[64];
static char *table;
static int kept = -1;
void paint_rows(void) { for (int i = 0; i < 64; i++) { rows[i] = malloc(40); memset(rows[i], 0x41, 72); } }
void churn(void) {
    void *some[20];
    for (size_t n = 24; n < 4000; n += 8) {
        for (int i = 0; i < 20; i++) some[i] = malloc(n);
        for (int i = 0; i < 20; i++) free(some[i]);
    }
}
void make_table(void) { table = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }
void drop_table(void) { munmap(table, 1 << 20); }
int read_table(void) { return table ? table[4096] : 0; }
static void *wait_and_crash(void *p) { usleep(300000); *(volatile int *)8 = 1; return p; }
void start_crasher(void) { pthread_t t; pthread_create(&t, 0, wait_and_crash, 0); pthread_detach(t); }
void handle_badly(void) { signal(SIGUSR2, (void (*)(int))8); }
void raise_if_handled(void) {
    struct sigaction now;
    sigaction(SIGUSR2, 0, &now);
    if (now.sa_handler != SIG_DFL) raise(SIGUSR2);
}
void keep_descriptor(int fd) { kept = fd; }
void use_descriptor(void) { if (kept >= 0 && write(kept, "x", 1) != 1) abort(); }
"""


@pytest.fixture(scope="session")
def damage(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    directory = tmp_path_factory.mktemp("damage")
    (directory / "damage.c").write_text(SOURCE)
    library = directory / "damage.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-pthread", "-o", library, directory / "damage.c"], check=True)
    return ctypes.CDLL(str(library))

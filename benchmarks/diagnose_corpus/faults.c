/* Seeded faults for benchmarks/diagnose.py. Each public function is guilty of what its comment says. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void *block(int size) { return malloc(size); }
void drop(void *memory) { free(memory); }
void churn(void) { void *all[64]; for (int i = 0; i < 64; i++) all[i] = malloc(16 + 8 * i); for (int i = 0; i < 64; i++) free(all[i]); }

/* writes one element past the end */
void overrun_heap(double *row, int n) { for (int i = 0; i <= n; i++) row[i] = 1e300 * i; }
/* writes before the block */
void underrun_heap(uint64_t *row) { for (int i = 1; i <= 3; i++) row[-i] = 0x4141414141414141u; }
/* writes to a block that was freed */
void write_freed(uint64_t *row) { for (int i = 0; i < 3; i++) row[i] = 0x4242424242424242u; }
/* follows a pointer in a block that was freed */
uint64_t read_freed(uint64_t **row) { return *row[1]; }
/* frees a block a second time */
void release_twice(void *row) { free(row); }
/* frees the middle of a block */
void free_inside(char *row) { free((void *)((uintptr_t)row + 24)); }
/* copies a text into a block without room for it */
void copy_name(char *target, const char *name) { strcpy(target, name); }
/* clears more than the board has */
void clear_board(char *board, int n) { memset(board, 0x5a, n + 24); }
/* copies doubles into a block for floats */
void copy_frame(void *target, const void *source, int n) { memcpy(target, source, n * sizeof(double)); }
/* overwrites its own stack frame */
void smash_stack(const char *text) { char name[8]; char *to = name; while (*text) *to++ = *text++; *to = 0; churn(); }
/* uses a pointer that nobody has set */
struct actor { uint64_t id; uint64_t *health; };
void use_unset(struct actor *actor) { actor->health[0] = 1; }
/* writes far outside */
void poke_far(char *board, long index) { board[index] = 1; }

/* keeps a pointer over a reallocation */
static uint64_t *stale_rows;
void append_stale(int n) {
    stale_rows = malloc(32);
    uint64_t *kept = stale_rows;
    stale_rows = realloc(stale_rows, 4096 + n);
    for (int i = 0; i < 4; i++) kept[i] = 0x4343434343434343u;
}

/* prints into a block without room for it */
void format_score(char *target, long score) { sprintf(target, "the score of this player is %ld points", score); }

/* two threads share a list without a lock */
static uint64_t **shared; static int shared_count, shared_room;
static void *race_push(void *unused) {
    for (int i = 0; i < 300000; i++) {
        if (shared_count >= shared_room) { shared_room = shared_count + 16; shared = realloc(shared, shared_room * sizeof *shared); }
        shared[shared_count++] = (uint64_t *)(uintptr_t)(i + 1);
        if (shared_count > 4000) shared_count = shared_room = 0, free(shared), shared = NULL;
    }
    return unused;
}
void race(void) {
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, race_push, NULL);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
}

/* what depends on conditions */
#include <omp.h>
void with_threads(void) {
    uint64_t *memory = omp_get_max_threads() > 1 ? NULL : malloc(8);
    #pragma omp parallel
    { memory[0] = 1; }
}
static pid_t owner;
void own(void) { owner = getpid(); }
void use_owned(void) { if (owner && owner != getpid()) *(volatile int *)0 = 1; }
void vector_path(void) { const char *level = getenv("ATEN_CPU_CAPABILITY"); if (!level || strcmp(level, "default")) *(volatile int *)0 = 1; }
void big_buffer(void) { char *memory = malloc(900u << 20); memory[5] = 1; free(memory); }
void die(void) { *(volatile int *)0 = 1; }

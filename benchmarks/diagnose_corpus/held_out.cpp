// Faults that the rules of the diagnosis had not seen when they were written, for benchmarks/diagnose.py.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <pthread.h>
#include <unistd.h>
#include <vector>

struct Actor { char name[8]; uint64_t *health; };
struct Sprite { uint64_t *pixels; Sprite() : pixels(new uint64_t[8]) {} ~Sprite() { delete[] pixels; } };
static std::vector<std::vector<uint64_t> *> rows;
static uint64_t *volatile frame;

static __attribute__((noinline)) void fill_tail(int *tail, int n) { for (int i = 0; i < n; i++) tail[i] = 7; }
static void *worker_draw(void *) { for (int i = 0; i < 4000000; i++) frame[i % 32] = 0x4141414141414141u; return nullptr; }
static void *worker_swap(void *) {
    for (int i = 0; i < 200000; i++) { uint64_t *old = frame; frame = (uint64_t *)calloc(32, 8); free(old); }
    return nullptr;
}

extern "C" {
void *buffer(int size) { return calloc(1, size); }
void release(void *memory) { free(memory); }
void churn(void) { void *all[64]; for (int i = 0; i < 64; i++) all[i] = malloc(16 + 8 * i); for (int i = 0; i < 64; i++) free(all[i]); }
// writes beyond a std::vector, by an inlined operator
void make_rows(int n) { for (int i = 0; i < 50; i++) rows.push_back(new std::vector<uint64_t>(n)); }
void blur_row(int index, int n) { for (int i = 0; i < n + 3; i++) (*rows[index])[i] = 0x4141414141414141u; }
void drop_rows(void) { for (auto *row : rows) delete row; }
// writes beyond an array within one block, into the pointer after it
Actor *spawn(void) { Actor *actor = (Actor *)calloc(1, sizeof(Actor)); actor->health = (uint64_t *)calloc(4, 8); return actor; }
void rename_actor(Actor *actor, const char *name) { strcpy(actor->name, name); }
void heal(Actor *actor) { actor->health[0]++; }
// gives the address of an array on its stack to a function that writes beyond it
int step_world(int n) { int cells[8]; fill_tail(cells, n); return cells[0]; }
// destroys an object twice
void *load_sprite(void) { return new Sprite; }
void drop_sprite(void *sprite) { delete (Sprite *)sprite; }
// two threads use one buffer without a lock
void render_in_threads(void) {
    frame = (uint64_t *)calloc(32, 8);
    pthread_t threads[2];
    pthread_create(&threads[0], nullptr, worker_draw, nullptr);
    pthread_create(&threads[1], nullptr, worker_swap, nullptr);
    for (pthread_t thread : threads) pthread_join(thread, nullptr);
}
}

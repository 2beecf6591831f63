/* Six ways to die under one tick(), for benchmarks/signatures.py. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static void draw_line(uint8_t *line, int n) { for (int i = 0; i < n; i++) line[i] = 7; }
static void mix_sound(uint16_t *wave, int n) { for (int i = 0; i < n; i++) wave[i] += 3; }
static void load_bank(int bank) { if (bank > 1) abort(); }
static void copy_tile(uint8_t *tile, int n) { memcpy(tile, "................................", n); }
static int divide_clock(int cycles, int by) { return cycles / by; }
static void *volatile sprite;
static void free_sprite(void) { free(sprite); free(sprite); }

static volatile int zero;

int tick(int kind, int n) {
    switch (kind) {
    case 0: draw_line((uint8_t *)8, n); break;
    case 1: mix_sound((uint16_t *)8, n); break;
    case 2: load_bank(n); break;
    case 3: copy_tile((uint8_t *)8, n); break;
    case 4: return divide_clock(n, zero);
    case 5: sprite = malloc(40); free_sprite(); break;
    }
    return 0;
}

// LDTILECFG reads 64 bytes. Before 11.5, 12.4, 13.3 and 14 GCC's _tile_loadconfig tells the optimizer of 8 of
// them (its bug 114098), so that what was stored in the others may be left out: on a processor with AMX
// llama.cpp then dies at the first prompt, of a general protection fault.
#ifdef __AMX_TILE__
#include <immintrin.h>
#undef _tile_loadconfig
#define _tile_loadconfig(config) __asm__ volatile("ldtilecfg %0" : : "m"(*(const char(*)[64])(config)))
// So that this library can be told from one that was compiled without this: see edgechat's amx.py.
__asm__(".ident \"edgechat: ldtilecfg reads 64 bytes\"");
#endif

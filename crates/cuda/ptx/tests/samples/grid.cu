// A barrier over the whole grid, as cooperative groups do it.
#include <cooperative_groups.h>
#include <cstdio>
namespace cg = cooperative_groups;
extern "C" __global__ void gsync(int *data, int n) {
  cg::grid_group g = cg::this_grid();
  for (int i = g.thread_rank(); i < n; i += g.size()) data[i] = i;
  g.sync();
  if (g.thread_rank() == 0) { long s = 0; for (int i = 0; i < n; i++) s += data[i]; printf("sum %ld of %d %s\n", s, n, "items"); data[0] = (int)s; }
}

/* One all-reduce and one ring of known values. A line of each rank: how many of its elements are wrong. */
#include <mpi.h>
#include <stdio.h>
#include <string.h>

#define COUNT 65536

static int mine[COUNT], summed[COUNT], passed[COUNT];

int main(int argc, char **argv) {
  int rank, size, number, wrong = 0, length = 0;
  char library[MPI_MAX_LIBRARY_VERSION_STRING];
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (number = 0; number < COUNT; number++) mine[number] = number % 509 + rank;
  MPI_Allreduce(mine, summed, COUNT, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Sendrecv(mine, COUNT, MPI_INT, (rank + 1) % size, 7, passed, COUNT, MPI_INT, (rank + size - 1) % size, 7,
               MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  for (number = 0; number < COUNT; number++) {
    wrong += summed[number] != number % 509 * size + size * (size - 1) / 2;
    wrong += passed[number] != number % 509 + (rank + size - 1) % size;
  }
  MPI_Get_library_version(library, &length);
  library[strcspn(library, "\r\n,")] = 0;
  printf("rank %d of %d wrong %d library %s\n", rank, size, wrong, library);
  fflush(stdout);
  MPI_Finalize();
  return wrong != 0;
}

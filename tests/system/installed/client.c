/* A minimal C program that uses the client library. */
#include <pollcore/attach.h>
#include <stdio.h>

int main(void) {
    if (pollcore_attach("/nowhere", "c", 0) != NULL) {
        return 1;
    }
    printf("nobody answers\n");
    return 0;
}

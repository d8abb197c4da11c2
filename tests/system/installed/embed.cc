// A program with an embedded runtime. It writes from one place to another in its own memory.
#include <cstdio>
#include <cstring>
#include <pollcore/runtime.hpp>
#include <pollcore/version.hpp>

int main() {
    using namespace pollcore;
    Runtime runtime(parse_config(
        "[runtime]\nshare_cores = true\n[memory]\nsize = \"16MiB\"\n[[device]]\nname = \"soft0\"\nkind = \"soft\"\n"
        "[[worker]]\nname = \"w\"\nidle = \"yield\"\n",
        "embedded"));
    Session session = runtime.open_session();
    MemoryRegion memory = runtime.allocate(4096, {.remote_write = true});
    QueuePair a = runtime.create_queue_pair({.shares = {{.session = &session}}});
    QueuePair b = runtime.create_queue_pair({.shares = {{.session = &session}}, .remote_access = {.write = true}});
    const QpInfo info = a.info();
    a.connect(b.info());
    b.connect(info);
    std::memcpy(memory.data(), "hello", 6);
    const auto write = WorkRequest::rdma_write(a.handle(), memory.sge(0, 6), memory.remote(64)).with_tag(7);
    if (session.try_submit(write) != Refusal::none) {
        return 1;
    }
    Completion completion;
    while (session.poll({&completion, 1}) == 0) {
    }
    if (!completion.ok() || completion.tag != 7 || std::memcmp(memory.data(), memory.data() + 64, 6) != 0) {
        return 1;
    }
    std::printf("pollcore %s\n", POLLCORE_VERSION);
    return POLLCORE_VERSION == kVersion ? 0 : 1;
}

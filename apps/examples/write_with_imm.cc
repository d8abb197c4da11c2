// The classical first program: one end writes into the memory of the other end. An immediate tells the other end that
// the bytes have arrived.
//
//   write_with_imm CONFIG        for example: write_with_imm config/loopback.toml
#include <cstring>
#include <string_view>

#include "example.hpp"

using namespace pollcore;

int main(int argc, char** argv) {
    if (argc != 2) {
        fmt::print(stderr, "usage: write_with_imm CONFIG\n");
        return 2;
    }
    return example::run([&] {
        Runtime runtime(load_config(argv[1]));     // opens the devices, starts the workers
        Session session = runtime.open_session();  // this thread's way to a worker
        MemoryRegion source = runtime.allocate(4096, Access::local());
        MemoryRegion target = runtime.allocate(4096, {.remote_write = true});
        QueuePair writer = runtime.create_queue_pair({.shares = {{.session = &session}}});
        QueuePair reader =
            runtime.create_queue_pair({.shares = {{.session = &session}}, .remote_access = {.write = true}});

        // The write names its target address itself. The receive takes only the immediate, so it needs no buffer.
        example::submit(session, WorkRequest::recv(reader.handle(), {}).with_tag(1));
        example::connect(writer, reader);

        constexpr std::string_view kText = "written by the other end";
        std::memcpy(source.data(), kText.data(), kText.size());
        const WorkRequest write =
            WorkRequest::rdma_write_with_imm(writer.handle(), source.sge(0, kText.size()), target.remote(), 2026);
        example::submit(session, write.with_tag(2));

        // Each end has one completion; the order is not known.
        for (int ends = 0; ends < 2; ++ends) {
            const Completion completion = example::next_completion(session);
            if (completion.from_recv_queue()) {
                fmt::print("the reader was told {}: {} bytes arrived: \"{}\"\n", completion.imm_data,
                           completion.byte_len,
                           std::string_view(reinterpret_cast<const char*>(target.data()), completion.byte_len));
            } else {
                fmt::print("the writer's request {} is done\n", completion.tag);
            }
        }
    });
}

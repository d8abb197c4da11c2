// The objects of a process that has just attached: a session, a region, and two queue pairs connected to each other.
#pragma once

#include <string>

#include "daemon_process.hpp"
#include "pollcore/attach.hpp"

namespace pollcore::test {

struct AttachedPair {
    explicit AttachedPair(const std::string& path)
        : daemon({.path = path, .name = "cost", .timeout = kPatience}),
          session(daemon.open_session()),
          memory(daemon.allocate(64 * 1024, Access::all())),
          a(daemon.create_queue_pair({.shares = {{.session = &session}}, .remote_access = RemoteAccess::all()})),
          b(daemon.create_queue_pair({.shares = {{.session = &session}}, .remote_access = RemoteAccess::all()})) {
        const QpInfo info = a.info();
        a.connect(b.info());
        b.connect(info);
    }
    /// Submits a signaled write.
    Refusal submit() {
        return session.try_submit({.sge = {memory.addr(), 8, memory.lkey()},
                                   .remote_addr = memory.addr() + 64,
                                   .rkey = memory.rkey(),
                                   .qp = a.handle(),
                                   .opcode = Opcode::rdma_write,
                                   .flags = kSignaled,
                                   .num_sge = 1});
    }

    Attachment daemon;
    Session session;
    MemoryRegion memory;
    QueuePair a;
    QueuePair b;
};

}  // namespace pollcore::test

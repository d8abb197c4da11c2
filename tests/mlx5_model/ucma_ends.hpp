// Two descriptors of rdma_cm between which tests connect. The tests write the commands themselves, because librdmacm
// sends no wrong commands. The tests need at least three devices (MLX5_MODEL_DEVICES), and remove the third.
#pragma once

#include <fcntl.h>
#include <linux/in6.h>
#include <linux/socket.h>
#include <linux/types.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <infiniband/ib.h>
#include <infiniband/sa.h>
#include <infiniband/verbs.h>
#include <rdma/ib_user_sa.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_cma.h>

#include "hca_fabric.hpp"
#include "ucma.hpp"

// The kernel's enumerators have the same names as librdmacm's.
namespace kernel {
#include <rdma/rdma_user_cm.h>
}  // namespace kernel

namespace mlx5_model {

inline constexpr int kPatienceMs = 10000;
inline constexpr std::uint32_t kRejectedByConsumer = 28;
inline constexpr std::uint32_t kNobodyListens = 8;
inline constexpr std::uint32_t kStale = 10;

inline std::uint64_t address_of(const void* object) {
    return reinterpret_cast<std::uintptr_t>(object);
}

inline sockaddr_in ipv4(std::uint32_t address, std::uint16_t port) {
    sockaddr_in out{};
    out.sin_family = AF_INET;
    out.sin_addr.s_addr = address;
    out.sin_port = htons(port);
    return out;
}

inline sockaddr_in of_device(std::size_t device, std::uint16_t port = 0) {
    return ipv4(devices().at(device).address, port);
}

inline sockaddr_in any(std::uint16_t port = 0) {
    return ipv4(INADDR_ANY, port);
}

inline sockaddr_in6 mapped(std::size_t device, std::uint16_t port = 0) {
    sockaddr_in6 out{};
    out.sin6_family = AF_INET6;
    out.sin6_port = htons(port);
    out.sin6_addr.s6_addr[10] = out.sin6_addr.s6_addr[11] = 0xff;
    std::memcpy(out.sin6_addr.s6_addr + 12, &devices().at(device).address, 4);
    return out;
}

/// A descriptor of rdma_cm. Its calls return 0 if write(2) succeeds, otherwise the error number.
class Channel {
public:
    Channel() : descriptor_(open_rdma_cm()) { EXPECT_GE(descriptor_, 0); }
    ~Channel() { close(); }
    Channel(const Channel&) = delete;
    Channel& operator=(const Channel&) = delete;

    void close() {
        if (descriptor_ >= 0) {
            ::close(descriptor_);
        }
        descriptor_ = -1;
    }
    [[nodiscard]] int descriptor() const { return descriptor_; }

    template <class Command>
    int command(std::uint32_t number, const Command& command, std::size_t room = 0) const {
        struct {
            kernel::rdma_ucm_cmd_hdr header;
            Command command;
        } __attribute__((packed)) all{};
        all.header.cmd = number;
        all.header.in = sizeof command;
        all.header.out = static_cast<std::uint16_t>(room);
        std::memcpy(&all.command, &command, sizeof command);
        const ssize_t written = ::write(descriptor_, &all, sizeof all);
        EXPECT_TRUE(written < 0 || written == static_cast<ssize_t>(sizeof all)) << written;
        return written < 0 ? errno : 0;
    }

    int create(std::uint32_t& id, std::uint16_t space = RDMA_PS_TCP, std::uint64_t uid = 1) const {
        kernel::rdma_ucm_create_id_resp answer{};
        kernel::rdma_ucm_create_id command{};
        command.uid = uid;
        command.ps = space;
        command.qp_type = IBV_QPT_RC;
        command.response = address_of(&answer);
        const int error = this->command(kernel::RDMA_USER_CM_CMD_CREATE_ID, command, sizeof answer);
        id = answer.id;
        return error;
    }
    [[nodiscard]] std::uint32_t id(std::uint16_t space = RDMA_PS_TCP) const {
        std::uint32_t number = 0;
        EXPECT_EQ(create(number, space), 0);
        return number;
    }
    int destroy(std::uint32_t id, std::uint32_t* reported = nullptr) const {
        kernel::rdma_ucm_destroy_id_resp answer{};
        kernel::rdma_ucm_destroy_id command{};
        command.id = id;
        command.response = address_of(&answer);
        const int error = this->command(kernel::RDMA_USER_CM_CMD_DESTROY_ID, command, sizeof answer);
        if (reported != nullptr) {
            *reported = answer.events_reported;
        }
        return error;
    }
    template <class Address>
    int bind(std::uint32_t id, const Address& address) const {
        kernel::rdma_ucm_bind command{};
        command.id = id;
        command.addr_size = sizeof address;
        std::memcpy(&command.addr, &address, sizeof address);
        return this->command(kernel::RDMA_USER_CM_CMD_BIND, command);
    }
    template <class Address>
    int resolve(std::uint32_t id, const Address& to, const sockaddr_in* from = nullptr) const {
        kernel::rdma_ucm_resolve_addr command{};
        command.id = id;
        command.timeout_ms = 1000;
        command.dst_size = sizeof to;
        std::memcpy(&command.dst_addr, &to, sizeof to);
        if (from != nullptr) {
            command.src_size = sizeof *from;
            std::memcpy(&command.src_addr, from, sizeof *from);
        }
        return this->command(kernel::RDMA_USER_CM_CMD_RESOLVE_ADDR, command);
    }
    int resolve_route(std::uint32_t id, std::uint32_t timeout_ms = 1000) const {
        return command(kernel::RDMA_USER_CM_CMD_RESOLVE_ROUTE, kernel::rdma_ucm_resolve_route{id, timeout_ms});
    }
    int listen(std::uint32_t id, std::uint32_t backlog = 0) const {
        return command(kernel::RDMA_USER_CM_CMD_LISTEN, kernel::rdma_ucm_listen{id, backlog});
    }
    static kernel::rdma_ucm_conn_param param(std::uint32_t qp_num, const std::string& data = {}) {
        kernel::rdma_ucm_conn_param out{};
        out.qp_num = qp_num;
        out.responder_resources = 3;
        out.initiator_depth = 5;
        out.retry_count = 6;
        out.rnr_retry_count = 4;
        out.valid = 1;
        std::memcpy(out.private_data, data.data(), data.size());
        out.private_data_len = static_cast<std::uint8_t>(data.size());
        return out;
    }
    int connect(std::uint32_t id, std::uint32_t qp_num, const std::string& data = {}) const {
        kernel::rdma_ucm_connect command{};
        command.id = id;
        command.conn_param = param(qp_num, data);
        command.ece = {.vendor_id = 77, .attr_mod = 78};
        return this->command(kernel::RDMA_USER_CM_CMD_CONNECT, command);
    }
    int accept(std::uint32_t id, std::uint32_t qp_num, const std::string& data = {}) const {
        kernel::rdma_ucm_accept command{};
        command.id = id;
        command.uid = 1000 + id;
        command.conn_param = param(qp_num, data);
        command.conn_param.responder_resources = 2;
        command.conn_param.initiator_depth = 1;
        return this->command(kernel::RDMA_USER_CM_CMD_ACCEPT, command);
    }
    /// The command that the asking end sends after its queue pair can send.
    int ready(std::uint32_t id) const {
        kernel::rdma_ucm_accept command{};
        command.id = id;
        return this->command(kernel::RDMA_USER_CM_CMD_ACCEPT, command);
    }
    int reject(std::uint32_t id, const std::string& data = {}, std::uint8_t reason = 0) const {
        kernel::rdma_ucm_reject command{};
        command.id = id;
        command.reason = reason;
        command.private_data_len = static_cast<std::uint8_t>(data.size());
        std::memcpy(command.private_data, data.data(), data.size());
        return this->command(kernel::RDMA_USER_CM_CMD_REJECT, command);
    }
    int disconnect(std::uint32_t id) const {
        return command(kernel::RDMA_USER_CM_CMD_DISCONNECT, kernel::rdma_ucm_disconnect{id});
    }
    int notify(std::uint32_t id, std::uint32_t event) const {
        return command(kernel::RDMA_USER_CM_CMD_NOTIFY, kernel::rdma_ucm_notify{id, event});
    }
    int qp_attributes(std::uint32_t id, std::uint32_t state, ib_uverbs_qp_attr& out) const {
        kernel::rdma_ucm_init_qp_attr command{};
        command.id = id;
        command.qp_state = state;
        command.response = address_of(&out);
        return this->command(kernel::RDMA_USER_CM_CMD_INIT_QP_ATTR, command, sizeof out);
    }
    template <class Value>
    int set_option(std::uint32_t id, std::uint32_t name, Value value, std::uint32_t level = RDMA_OPTION_ID) const {
        kernel::rdma_ucm_set_option command{};
        command.id = id;
        command.level = level;
        command.optname = name;
        command.optval = address_of(&value);
        command.optlen = sizeof value;
        return this->command(kernel::RDMA_USER_CM_CMD_SET_OPTION, command);
    }
    template <class Answer>
    int query(std::uint32_t id, std::uint32_t option, Answer& out, std::size_t room = sizeof(Answer)) const {
        kernel::rdma_ucm_query command{};
        command.id = id;
        command.option = option;
        command.response = address_of(&out);
        return this->command(kernel::RDMA_USER_CM_CMD_QUERY, command, room);
    }
    [[nodiscard]] kernel::rdma_ucm_query_addr_resp addresses(std::uint32_t id) const {
        kernel::rdma_ucm_query_addr_resp out{};
        EXPECT_EQ(query(id, kernel::RDMA_USER_CM_QUERY_ADDR, out), 0);
        return out;
    }
    [[nodiscard]] std::uint16_t port(std::uint32_t id) const {
        const kernel::rdma_ucm_query_addr_resp answer = addresses(id);
        sockaddr_in source{};
        std::memcpy(&source, &answer.src_addr, sizeof source);
        return ntohs(source.sin_port);
    }

    [[nodiscard]] bool readable(int timeout_ms = 0) const {
        pollfd one{descriptor_, POLLIN, 0};
        return ::poll(&one, 1, timeout_ms) == 1;
    }
    int get_event(kernel::rdma_ucm_event_resp& out, std::size_t room = sizeof(kernel::rdma_ucm_event_resp)) const {
        return command(kernel::RDMA_USER_CM_CMD_GET_EVENT, kernel::rdma_ucm_get_event{address_of(&out)}, room);
    }
    /// Reads the next event, and expects that it has this number and this status.
    kernel::rdma_ucm_event_resp expect(std::uint32_t event, std::uint32_t status = 0) const {
        kernel::rdma_ucm_event_resp out{};
        if (!readable(kPatienceMs)) {
            ADD_FAILURE() << "no event came, expected " << rdma_event_str(static_cast<rdma_cm_event_type>(event));
            return out;
        }
        EXPECT_EQ(get_event(out), 0);
        EXPECT_STREQ(rdma_event_str(static_cast<rdma_cm_event_type>(out.event)),
                     rdma_event_str(static_cast<rdma_cm_event_type>(event)));
        EXPECT_EQ(static_cast<std::int32_t>(out.status), static_cast<std::int32_t>(status));
        return out;
    }

private:
    int descriptor_;
};

class RdmaCm : public ::testing::Test {
protected:
    std::uint32_t listener(const sockaddr_in& at, std::uint32_t backlog = 0, std::uint16_t space = RDMA_PS_TCP) {
        const std::uint32_t id = server.id(space);
        EXPECT_EQ(server.bind(id, at), 0);
        EXPECT_EQ(server.listen(id, backlog), 0);
        return id;
    }
    std::uint32_t routed(const sockaddr_in& to, std::uint16_t space = RDMA_PS_TCP) {
        const std::uint32_t id = client.id(space);
        EXPECT_EQ(client.resolve(id, to), 0);
        client.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
        EXPECT_EQ(client.resolve_route(id), 0);
        client.expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
        return id;
    }
    /// Makes both ends. One end has asked for a connection; the other has not answered yet.
    void ask() {
        listening = listener(of_device(0));
        asking = routed(of_device(0, server.port(listening)));
        ASSERT_EQ(client.connect(asking, kAskingQp, "please"), 0);
        asked = server.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
        answering = asked.id;
    }
    /// Connects from device `from` to device `to`, and stops after the answer was sent.
    void reply(std::size_t from, std::size_t to) {
        listening = listener(of_device(to));
        asking = client.id();
        const sockaddr_in source = of_device(from);
        ASSERT_EQ(client.resolve(asking, of_device(to, server.port(listening)), &source), 0);
        client.expect(RDMA_CM_EVENT_ADDR_RESOLVED);
        ASSERT_EQ(client.resolve_route(asking), 0);
        client.expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
        ASSERT_EQ(client.connect(asking, kAskingQp), 0);
        answering = server.expect(RDMA_CM_EVENT_CONNECT_REQUEST).id;
        ASSERT_EQ(server.accept(answering, kAnsweringQp), 0);
        client.expect(RDMA_CM_EVENT_CONNECT_RESPONSE);
    }
    void reply() {
        ask();
        ASSERT_EQ(server.accept(answering, kAnsweringQp, "yes"), 0);
        replied = client.expect(RDMA_CM_EVENT_CONNECT_RESPONSE);
    }
    void establish() {
        reply();
        ASSERT_EQ(client.ready(asking), 0);
        server.expect(RDMA_CM_EVENT_ESTABLISHED);
    }
    static void expect_data(const std::uint8_t* data, std::uint8_t told, const std::string& sent, std::size_t all) {
        EXPECT_EQ(told, all);
        EXPECT_EQ(std::string(reinterpret_cast<const char*>(data), told), sent + std::string(all - sent.size(), '\0'));
    }

    static constexpr std::uint32_t kAskingQp = 0x111;
    static constexpr std::uint32_t kAnsweringQp = 0x222;

    Channel client;
    Channel server;
    std::uint32_t listening = 0;
    std::uint32_t asking = 0;
    std::uint32_t answering = 0;
    kernel::rdma_ucm_event_resp asked{};
    kernel::rdma_ucm_event_resp replied{};
};

}  // namespace mlx5_model
